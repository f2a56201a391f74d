"""Workers in the admin: their health, and the effects of the operations on them."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.utils import timezone

from orchestrator.admin.workers import admin
from orchestrator.core.cause import Cause
from orchestrator.services import credentials, worker_state
from runtime_jobs.errors import Invalid
from runtime_jobs.models import Job, OperatorEvent
from tests.factories import OPERATOR, PoolFactory, RunnerFactory, RunnerPoolFactory, WorkerFactory, claimed, submitted
from tests.orchestrator.admin.pages import address
from tests.orchestrator.admin.test_job_actions import messages_of
from workers.models import Worker
from workers.registry.tokens import digest_of

LIST = "/admin/workers/worker/"
WHY = {"reason": "the fan is loud"}
NEW = {"slug": "build-09", "capacity": "2", "labels": "gpu\r\n amd64 \r\n\r\n", "capabilities": "linux"}


@pytest.fixture
def worker(db):
    return WorkerFactory(slug="build-01", capacity=4)


def action_url(name: str, worker: Worker) -> str:
    return f"{LIST}{worker.pk}/{name}/"


def state_of(worker: Worker) -> tuple[str, str]:
    return Worker.objects.values_list("state", "note").get(pk=worker.pk)


def test_a_new_worker_gets_a_token_that_is_shown_once(olga, db):
    answer = olga.post(f"{LIST}add/", NEW | {"pool": PoolFactory().pk})
    assert answer.status_code == 200
    token = answer.context["token"]
    assert token in answer.content.decode()
    assert "no-store" in answer["Cache-Control"]
    made = Worker.objects.get(slug="build-09")
    assert made.digest == digest_of(token)
    assert (made.capacity, made.labels, made.capabilities) == (2, ["gpu", "amd64"], ["linux"])
    for page in (LIST, f"{LIST}{made.pk}/change/", address(OperatorEvent, "changelist"), f"{LIST}{made.pk}/history/"):
        assert token not in olga.get(page, follow=True).content.decode()
    assert olga.post(f"{LIST}add/", NEW | {"pool": made.pool.pk}).status_code == 400  # a reload makes no second one
    assert Worker.objects.count() == 1


def test_the_registration_is_in_the_trail(olga, db):
    olga.post(f"{LIST}add/", NEW | {"pool": PoolFactory().pk}, REMOTE_ADDR="198.51.100.9")
    event = OperatorEvent.objects.get()
    made = Worker.objects.get()
    assert (event.action, event.actor, event.target) == ("worker.registered", "operator:olga", made.worker_id)
    assert event.source_address == "198.51.100.9"
    assert event.after["labels"] == ["gpu", "amd64"]


def test_the_trail_has_the_operator_s_address_and_not_the_proxy_s(olga, settings):
    settings.BEHIND_PROXY = True
    olga.post(f"{LIST}add/", NEW | {"pool": PoolFactory().pk}, headers={"X-Forwarded-For": "10.0.0.1, 198.51.100.9"})
    assert OperatorEvent.objects.get().source_address == "198.51.100.9"


def test_the_form_offers_the_usual_capabilities(olga, db):
    form = olga.get(f"{LIST}add/").context["form"]
    assert "namespaces" in form["capabilities"].value()


@pytest.mark.parametrize(
    "wrong", [{"slug": "Build 09"}, {"slug": ""}, {"capacity": "0"}, {"pool": "999"}, {"labels": "x" * 64}]
)
def test_a_worker_that_makes_no_sense_is_not_made(wrong, olga, db):
    answer = olga.post(f"{LIST}add/", NEW | {"pool": PoolFactory().pk} | wrong)
    assert answer.status_code == 400
    assert not Worker.objects.exists()


def test_a_rotated_token_is_shown_once_and_ends_the_old_one(olga, worker):
    answer = olga.post(action_url("rotate", worker), WHY)
    token = answer.context["token"]
    assert Worker.objects.get().digest == digest_of(token) != digest_of(worker.token)
    assert token not in olga.get(f"{LIST}{worker.pk}/change/").content.decode()
    event = OperatorEvent.objects.get()
    assert (event.action, event.reason, event.before, event.after) == (
        "worker.token_rotated", "the fan is loud", None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "state", "message"), [("drain", "draining", "draining"), ("maintenance", "maintenance", "in maintenance")]
)
def test_a_worker_is_drained_or_in_maintenance_until_it_is_activated(name, state, message, olga, worker):
    assert olga.get(action_url(name, worker)).status_code == 200
    answer = olga.post(action_url(name, worker), WHY | {"note": "new disk on Thursday"})
    assert messages_of(answer) == [f"build-01: {message}."]
    assert state_of(worker) == (state, "new disk on Thursday" if state == "maintenance" else "")
    olga.post(action_url("activate", worker), WHY)
    assert state_of(worker) == ("active", "")
    last = OperatorEvent.objects.latest("id")
    assert (last.before["state"], last.after["state"], last.reason) == (state, "active", "the fan is loud")


def test_a_revoked_worker_gives_back_what_it_holds(olga, worker):
    submitted()
    running = claimed(worker).job
    submitted()
    granted = claimed(worker, acknowledge=True).job
    answer = olga.post(action_url("revoke", worker), WHY)
    assert messages_of(answer) == ["build-01: revoked, 2 leases revoked."]
    running.refresh_from_db()
    granted.refresh_from_db()
    assert (running.state, running.failure_reason) == ("failed", "worker_lost")
    assert granted.state == "queued"
    assert "worker revoked: the fan is loud" in running.failure_message


def test_a_revoked_worker_stays_so_and_says_it(olga, worker):
    worker_state.set_worker_state(worker_id=worker.worker_id, state="revoked", cause=Cause(OPERATOR))
    for name in ("activate", "drain", "maintenance", "rotate", "revoke"):
        words = messages_of(olga.post(action_url(name, worker), WHY))
        assert words[-1] == "build-01: The worker does not exist or was revoked.", name
    page = olga.get(f"{LIST}{worker.pk}/change/").content.decode()
    assert "/rotate/" not in page
    assert olga.post(f"{LIST}{worker.pk}/change/", {"capacity": 9}).status_code == 403


@pytest.mark.parametrize("name", ["activate", "drain", "maintenance", "rotate", "revoke"])
def test_whoever_may_only_look_at_workers_changes_none(name, viewer, worker):
    assert f"/{name}/" not in viewer.get(f"{LIST}{worker.pk}/change/").content.decode()
    assert viewer.get(action_url(name, worker)).status_code == 403
    assert viewer.post(action_url(name, worker), WHY).status_code == 403
    assert viewer.post(f"{LIST}add/", NEW).status_code == 403
    assert state_of(worker) == ("active", "")
    assert Worker.objects.get().digest == digest_of(worker.token)


@pytest.mark.parametrize("name", ["drain", "maintenance", "rotate", "revoke"])
def test_nothing_happens_to_a_worker_without_a_reason(name, olga, worker):
    assert olga.post(action_url(name, worker), {"reason": " "}).status_code == 400
    assert state_of(worker) == ("active", "")
    assert not OperatorEvent.objects.exists()


def test_health_is_what_was_heard_lately(olga, worker, monkeypatch):
    page, now = f"{LIST}{worker.pk}/change/", timezone.now()
    monkeypatch.setattr(admin, "database_now", lambda: now)
    monkeypatch.setattr(admin, "timezone", SimpleNamespace(now=lambda: now))
    for seconds, health in ((1, "Online"), (59, "Online"), (61, "Offline")):
        Worker.objects.update(last_seen_at=now - timedelta(seconds=seconds))
        assert olga.get(page).context["health"] == health
        listed = {
            name: len(olga.get(f"{LIST}?health={name}").context["cl"].result_list) for name in ("online", "offline")
        }
        assert listed == {"online": int(health == "Online"), "offline": int(health == "Offline")}
    worker_state.set_worker_state(worker_id=worker.worker_id, state="draining", cause=Cause(OPERATOR))
    assert olga.get(page).context["health"] == "Draining"


def test_a_worker_shows_what_it_holds(olga, worker):
    submitted()
    job: Job = claimed(worker).job
    page = olga.get(f"{LIST}{worker.pk}/change/").content.decode()
    assert job.job_ulid in page
    assert "Running 1 of 4 slots." in page
    assert "1 of 4" in olga.get(LIST).content.decode()


def test_what_a_worker_may_offer_is_edited_with_before_and_after(olga, worker):
    form = {
        "pool": worker.pool.pk,
        "capacity": "8",
        "labels": "gpu\namd64",
        "capabilities": "\n".join(worker.capabilities),
    }
    assert olga.post(f"{LIST}{worker.pk}/change/", form).status_code == 302
    event = OperatorEvent.objects.get()
    assert (event.action, event.target) == ("worker.changed", worker.worker_id)
    assert event.before == {"capacity": 4, "labels": []}
    assert event.after == {"capacity": 8, "labels": ["gpu", "amd64"]}


def test_an_edit_writes_only_what_was_edited(olga, worker, monkeypatch):
    """While the form was open the worker sent a heartbeat and was drained, and its token was rotated."""
    from orchestrator.admin.workers.admin import WorkerAdmin  # noqa: PLC0415 - to open the form in the middle

    stale = WorkerAdmin.get_object

    def meanwhile(self, request, object_id, from_field=None):
        row = stale(self, request, object_id, from_field)
        Worker.objects.update(state="draining", digest="f" * 64, last_seen_at="2030-01-01T00:00Z")
        return row

    monkeypatch.setattr(WorkerAdmin, "get_object", meanwhile)
    form = {"pool": worker.pool.pk, "capacity": "8", "labels": "", "capabilities": "\n".join(worker.capabilities)}
    assert olga.post(f"{LIST}{worker.pk}/change/", form).status_code == 302
    now = Worker.objects.get()
    assert (now.capacity, now.state, now.digest, now.last_seen_at.year) == (8, "draining", "f" * 64, 2030)


def test_no_worker_is_registered_in_the_pool_of_runners(olga, db):
    """Such a worker would get a token of the native API, and with it the jobs of runners."""
    pool = RunnerPoolFactory()
    answer = olga.post(f"{LIST}add/", NEW | {"pool": pool.pk})
    assert answer.status_code == 400
    assert "pool of runners" in answer.content.decode()
    assert not Worker.objects.exists()
    with pytest.raises(Invalid):
        credentials.register_worker(slug="x", pool=pool, capacity=1, labels=[], capabilities=[], cause=Cause(OPERATOR))


@pytest.mark.parametrize("is_runner", [True, False])
def test_no_worker_moves_into_the_pool_of_runners_or_out_of_it(olga, worker, is_runner):
    runner = RunnerFactory()
    moved, pool = (runner, worker.pool) if is_runner else (worker, runner.pool)
    form = {"pool": pool.pk, "capacity": "3", "labels": "", "capabilities": "", "certificate_subject": ""}
    answer = olga.post(f"{LIST}{moved.pk}/change/", form)
    assert answer.status_code == 200, "the form again"
    assert "runner" in str(answer.context["adminform"].form.errors["pool"])
    moved.refresh_from_db()
    assert moved.pool != pool
    kept = olga.post(f"{LIST}{moved.pk}/change/", form | {"pool": moved.pool.pk})
    assert kept.status_code == 302, "all else can be changed"
    assert Worker.objects.get(pk=moved.pk).capacity == 3
