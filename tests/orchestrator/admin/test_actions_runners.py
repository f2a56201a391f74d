"""Runners of workflow jobs in the admin: each change is a button with a reason, each token is displayed once."""

import re
from datetime import timedelta

import pytest
from django.test import Client

from runtime_jobs.db_time import database_now
from runtime_jobs.models import OperatorEvent
from tests.orchestrator.admin.conftest import client_of, person
from tests.orchestrator.admin.pages import address
from tests.orchestrator.protocols.shithub.runner import RunnerClient
from tests.orchestrator.protocols.shithub.world import register, start_run
from workers.models import ActionsRunner, Pool, RegistrationToken, Worker
from workers.registry.models import WorkerState

pytestmark = pytest.mark.django_db
LIST = "/admin/workers/actionsrunner/"
WHY = {"reason": "planned"}


@pytest.fixture
def admin(db) -> Client:
    """Staff with the one permission."""
    return client_of(person("ada", "workers.change_worker"))


@pytest.fixture
def runner(db):
    return register()


def token_in(response) -> str:
    (found,) = set(re.findall(r"\b[0-9a-f]{64}\b", response.content.decode()))
    return found


def buttons(client, runner) -> set[str]:
    text = client.get(address(ActionsRunner, "change", runner.row.pk)).content.decode()
    return set(re.findall(rf'/{runner.row.pk}/([a-z-]+)/"', text)) - {"history", "change"}


def test_a_new_runner_has_its_token_displayed_once(admin, runner):
    pool = Pool.objects.get()
    form = {"name": "Rack_7", "label_text": "linux, gpu", "capacity": "3", "pool": pool.pk, "isolation": "namespaces"}
    response = admin.post(f"{LIST}add/", form)
    token = token_in(response)
    row = ActionsRunner.objects.get(name="Rack_7")
    assert (row.labels, row.worker.capacity, row.worker.pool) == (["linux", "gpu"], 3, pool)
    assert RunnerClient(token).heartbeat().status_code == 204
    for page in (LIST, address(ActionsRunner, "change", row.pk), address(OperatorEvent, "changelist")):
        assert token not in admin.get(page).content.decode()
    assert OperatorEvent.objects.latest("pk").actor == "operator:ada"


@pytest.mark.parametrize(
    "wrong",
    [{"name": ""}, {"name": "runner-1"}, {"label_text": "a b"}, {"capacity": "65"}, {"isolation": "strong"}],
    ids=str,
)
def test_a_runner_that_makes_no_sense_is_not_made(admin, runner, wrong):
    form = {"name": "a", "label_text": "", "capacity": "1", "pool": Pool.objects.get().pk, "isolation": "namespaces"}
    assert admin.post(f"{LIST}add/", form | wrong).status_code == 400
    assert ActionsRunner.objects.count() == 1


def test_the_list_and_the_page_show_the_runner_and_its_jobs(admin, runner):
    start_run()
    runner.client.claim(host_name="rack", version="1.2.3")
    for page in (LIST, address(ActionsRunner, "change", runner.row.pk)):
        text = admin.get(page).content.decode()
        assert "runner-1" in text
        assert "1.2.3" in text
        assert runner.client.registration not in text
    assert "1 of 1" in admin.get(LIST).content.decode()
    page = admin.get(address(ActionsRunner, "change", runner.row.pk)).content.decode()
    summary = " ".join(page.split())
    for words in ("Last heartbeat", "Running 1 of 1 slot.", runner.worker_id, ">build<", "rack"):
        assert words in summary, words


def test_the_page_of_a_runner_without_heartbeats_says_when_it_was_registered(admin, runner):
    page = admin.get(address(ActionsRunner, "change", runner.row.pk)).content.decode()
    registered_at = runner.row.worker.created_at
    assert f"Registered {registered_at:%Y-%m-%d %H:%M:%S} UTC, no heartbeat yet." in page


def test_the_page_lists_the_tokens_with_what_became_of_them(admin, runner):
    RegistrationToken.objects.update(expires_at=database_now() - timedelta(seconds=1))
    for overlap in ("60", "0"):
        admin.post(f"{LIST}{runner.row.pk}/rotate-token/", WHY | {"overlap_minutes": overlap})
    page = admin.get(address(ActionsRunner, "change", runner.row.pk)).context["tokens"]
    assert [(token["state"], token["expires_at"] is None) for token in page] == [
        ("valid", True), ("revoked", True), ("revoked", False)
    ]  # fmt: skip


def test_a_token_can_be_given_an_expiry(admin, runner):
    pool = Pool.objects.get().pk
    form = {"name": "a", "label_text": "", "capacity": "1", "pool": pool, "isolation": "namespaces"}
    assert admin.post(f"{LIST}add/", form | {"expires_after_days": "30"}).status_code == 200
    token = RegistrationToken.objects.latest("pk")
    assert token.expires_at - token.created_at == timedelta(days=30)
    assert admin.post(f"{LIST}add/", form | {"name": "b", "expires_after_days": "0"}).status_code == 400


def test_buttons_follow_the_state(admin, runner):
    assert buttons(admin, runner) == {"drain", "rotate-token", "revoke"}
    admin.post(f"{LIST}{runner.row.pk}/drain/", WHY)
    assert buttons(admin, runner) == {"undrain", "rotate-token", "revoke"}
    admin.post(f"{LIST}{runner.row.pk}/undrain/", WHY)
    assert Worker.objects.get().state == WorkerState.ACTIVE
    admin.post(f"{LIST}{runner.row.pk}/revoke/", WHY)
    assert buttons(admin, runner) == set()


def test_a_rotation_displays_the_new_token_and_keeps_the_old_one_for_the_overlap(admin, runner):
    response = admin.post(f"{LIST}{runner.row.pk}/rotate-token/", WHY | {"overlap_minutes": "5"})
    assert RunnerClient(token_in(response)).heartbeat().status_code == 204
    assert runner.client.heartbeat().status_code == 204
    assert RegistrationToken.objects.filter(expires_at__isnull=False).count() == 1
    event = OperatorEvent.objects.latest("pk")
    assert (event.action, event.reason) == ("actions_runner.token_rotated", "planned")


def test_a_revocation_ends_the_jobs_and_refuses_the_token(admin, runner):
    started = start_run()
    claimed = runner.client.claim()
    claimed.run()
    admin.post(f"{LIST}{runner.row.pk}/revoke/", WHY)
    started.job.refresh_from_db()
    assert started.job.is_final
    assert runner.client.heartbeat().status_code == 401
    assert claimed.check_cancel().status_code == 401


@pytest.mark.parametrize("button", ["drain", "undrain", "rotate-token", "revoke"])
def test_each_button_asks_for_a_reason_first(admin, runner, button):
    path = f"{LIST}{runner.row.pk}/{button}/"
    assert admin.get(path).status_code == 200
    assert admin.post(path, {"reason": ""}).status_code == 400
    assert Worker.objects.get().state == WorkerState.ACTIVE
    assert RegistrationToken.objects.filter(revoked_at__isnull=True).count() == 1


def test_without_the_permission_there_is_no_page(runner):
    viewer = client_of(person("vic", "runtime_jobs.view_job"))
    assert viewer.get(LIST).status_code == 403
    assert viewer.post(f"{LIST}{runner.row.pk}/revoke/", WHY).status_code in {302, 403}
    assert Worker.objects.get().state == WorkerState.ACTIVE


def test_a_form_without_a_csrf_token_is_403(runner):
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(person("ada", "workers.change_worker"))
    assert strict.post(f"{LIST}{runner.row.pk}/revoke/", WHY).status_code == 403
    assert Worker.objects.get().state == WorkerState.ACTIVE


def test_the_page_of_the_worker_offers_no_token_of_the_native_api(admin, runner):
    admin.post(f"/admin/workers/worker/{runner.row.pk}/rotate/", WHY)
    assert OperatorEvent.objects.filter(action="worker.token_rotated").count() == 0
