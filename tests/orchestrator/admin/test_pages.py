"""Rules that every page of the admin follows."""

import re
from types import SimpleNamespace
from uuid import uuid4

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from leases.models import Breaker, Lease, Limit, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.admin.filters import parameters_of
from orchestrator.admin.jobs import page as job_page
from orchestrator.bulk_actions.models import BulkAction, BulkTarget
from orchestrator.core.cause import Cause
from orchestrator.evidence.replay_models import Replay
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.incidents.models import Incident
from orchestrator.ingest.models import Run
from orchestrator.protocols.github.models import WebhookDelivery
from orchestrator.schedules.models import Schedule, ScheduleTick
from orchestrator.services import batches, cancellation, heartbeat, job_end, retries, worker_state
from orchestrator.step_logs import job_log_writes
from orchestrator.webhooks.models import Delivery, DeliveryTry, NotificationRule, Webhook
from runtime_jobs.events import Actor
from runtime_jobs.models import (
    ApiToken,
    Batch,
    CacheEntry,
    Job,
    JobEvent,
    Membership,
    OperatorEvent,
    Organization,
    PersonalKey,
    Plan,
    Project,
    RejectedWorkflow,
    Repository,
    StoredArtifact,
    WorkflowRun,
)
from runtime_jobs.states import FailureReason
from tests.factories import (
    OPERATOR,
    HardwareSpecFactory,
    OrganizationFactory,
    PoolFactory,
    ProjectFactory,
    RunnerFactory,
    WorkerFactory,
    api_token,
    claimed,
    limited,
    personal_key,
    submitted,
)
from tests.orchestrator.admin.conftest import NAME, client_of, person
from tests.orchestrator.admin.fixtures import busy
from tests.orchestrator.admin.pages import DASHBOARD, address, all_pages, nouns
from tests.shared_rows import module_transaction
from tests.workflow_runs import started, workflow_text
from workers.models import Pool, Worker

EVIL = "<script>alert(1)</script>"
READ_ONLY = [Job, Batch, Lease, JobEvent, OperatorEvent, Run, WebhookDelivery, Limit, Breaker, Incident, Delivery]
READ_ONLY += [WorkflowRun, RejectedWorkflow, Replay]
LISTS_AT_MOST = 12  # queries
SECRETS = ("rtl_", "rto_", "$argon2", "whsec_")


def one_of_each(mark: str) -> None:
    """A row of every noun, all free text of which is `mark`; the job has failed and been retried, with a log."""
    project = ProjectFactory(
        organization=OrganizationFactory(slug=f"org-{mark}"[:63], name=mark, egress=[mark]),
        slug=mark,
        repositories=[f"{mark}/{mark}"],
    )
    pool = PoolFactory(slug=f"{mark}-pool", description=mark)
    worker = WorkerFactory(slug=f"worker-{mark}"[:63], pool=PoolFactory(), labels=[mark])
    submitted(project, repo_url=mark, owner=mark, repo=mark, ref=mark, command=(mark,), working_directory=mark)
    taken = claimed(worker)
    lease = taken.lease.lease_ulid
    heartbeat.report(lease_ulid=lease, worker=worker, phase="executing")
    heartbeat.renew(lease_ulid=lease, worker=worker, progress={"message": mark, "percent": 5})
    job_log_writes.append_log(lease_ulid=lease, worker=worker, seq=0, chunk=f"{mark} {lease}\n".encode())
    job_end.fail(
        lease_ulid=lease, worker=worker, reason=FailureReason.WORKER_ERROR, message=f"{mark} POST /v1/…/{lease}/fail"
    )
    again = retries.retry(job_ulid=taken.job.job_ulid, actor=OPERATOR, reason=mark).job
    held = claimed(worker)
    cancellation.cancel(job_ulid=again.job_ulid, actor=OPERATOR, deadline_seconds=60, message=f"{mark} {lease}")
    worker_state.set_worker_state(
        worker_id=worker.worker_id, state="maintenance", cause=Cause(OPERATOR, mark), note=mark
    )
    batch = Batch.objects.create(
        org_slug=mark, project_slug=mark, repo_url=mark, git_ref=mark, git_commit=mark, trigger_kind="manual",
        trigger_actor=mark, details={"reason": mark}, correlation_id="x", created_at=again.created_at,
    )  # fmt: skip
    Job.objects.filter(pk=again.pk).update(
        batch=batch, spec={"name": mark, "steps": [mark], "environment": {mark: mark}}
    )
    Run.objects.create(
        run_id=f"run_{mark}"[:64], job_id=held.job.job_ulid, org_slug=mark, project_slug=mark, worker_id=worker.worker_id,
        payload={"x": mark}, payload_sha256="0" * 64,
    )  # fmt: skip
    WebhookDelivery.objects.create(
        event=mark, action=mark, repository=mark, org_slug=mark, project_slug=mark, outcome="refused", reason=mark,
        received_at=held.job.created_at,
    )  # fmt: skip
    for subject in (
        LimitTarget(LimitScope.PROJECT, f"org-{mark}"[:63], mark),
        LimitTarget(LimitScope.POOL, "", pool.slug),
    ):
        limited(subject, kind=LimitKind.PAUSE, max_active=0, cause=Cause(Actor("operator", mark), mark))
    limited(f"org-{mark}"[:63], kind=LimitKind.RATE, per_hour=1, cause=Cause(OPERATOR, mark))
    Breaker.objects.create(org_slug=mark, job_type=mark, state="open", opened_at=again.created_at)
    Incident.objects.create(kind="breaker", org_slug=mark, job_type=mark, summary=mark, opened_at=again.created_at)
    api_token(project.organization)
    ApiToken.objects.update(name=mark)
    Membership.objects.create(user=person(f"member-{mark}"[:150]), organization=project.organization)
    hardware = HardwareSpecFactory(slug=f"spec-{mark}"[:64], name=mark)
    RunnerFactory(slug=f"runner-{mark}"[:63], name=mark, specs=[hardware])
    repository = Repository.objects.create(
        project=project, owner=mark, name=mark, origin=mark, sealed_credential=b"rto_"
    )
    text = workflow_text({"a": {"name": f"'{mark}'"}, "b": {"needs": "a"}}, name=f"'{mark}'", concurrency=f"'{mark}'")
    run = started(text, repository, workflow_file=mark, head_ref=mark, reason=mark, event_payload={mark: mark})
    again = started(text, repository, workflow_file=mark, parent=run, edits={"env": {mark: mark}}, reason=mark)
    for found in (run, again):
        batches.cancel_batch(batch_ulid=found.batch.batch_ulid, actor=OPERATOR, deadline_seconds=60)
    RejectedWorkflow.objects.create(
        repository=repository, workflow_file=mark, head_sha=run.head_sha, head_ref=mark, event="push", trigger_id=mark,
        diagnostics=[{"path": mark, "line": 1, "severity": "error", "message": mark}],
    )  # fmt: skip
    of_tenant = {"organization": project.organization, "project": project, "byte_count": 1}
    of_tenant |= {"created_at": held.job.created_at, "upload_until": held.job.created_at}
    StoredArtifact.objects.create(job=held.job, name=mark, object_key=f"a-{mark}", **of_tenant)
    CacheEntry.objects.create(
        scope=mark, key=mark, version="0" * 64, object_key=f"c-{mark}", last_used_at=held.job.created_at, **of_tenant
    )
    webhook = Webhook.objects.create(
        organization=project.organization, url=f"https://{mark}/", description=mark, event_types=[mark],
        job_types=[mark], status_reason=mark, sealed_secret=b"rto_", updated_by=mark,
    )  # fmt: skip
    delivery = Delivery.objects.create(
        webhook=webhook, org_slug=mark, event_id=uuid4(), event_type=mark, job_type=mark, body=mark, last_error=mark,
        due_at=held.job.created_at,
    )  # fmt: skip
    DeliveryTry.objects.create(
        delivery=delivery, number=1, started_at=held.job.created_at, duration_ms=1, is_success=False, answer=mark,
        sentence=mark,
    )  # fmt: skip
    NotificationRule.objects.create(
        organization=project.organization, name=mark, event_types=[mark], projects=[mark], webhook=webhook,
        updated_by=mark,
    )  # fmt: skip
    Replay.objects.create(
        job_ulid=held.job.job_ulid, replay_of_ulid=held.job.job_ulid, attempt_ulid=held.job.job_ulid, org_slug=mark,
        job_type=mark, is_sealed=True, reason=mark, requested_by=mark, caveats=[mark], expected={mark: mark},
        found={mark: mark}, verdict="diverged", difference={"path": mark, "expected": mark, "found": mark},
        reasons=[mark], notes=[{"path": mark, "expected": mark, "found": mark}],
        created_at=held.job.created_at, decided_at=held.job.created_at,
    )  # fmt: skip
    schedule = Schedule.objects.create(
        organization=project.organization, name=mark, cron="* * * * *", time_zone="UTC", job={"job_type": mark},
        updated_by=mark,
    )  # fmt: skip
    ScheduleTick.objects.create(schedule=schedule, due_at=held.job.created_at, outcome="refused", message=mark)
    action = BulkAction.objects.create(
        organization=project.organization, action=mark[:20], filters={"pool": mark}, reason=mark, actor_kind="client",
        actor_name=mark, total=1, refused=1, status="completed", finished_at=held.job.created_at, aborted_by=mark,
    )  # fmt: skip
    BulkTarget.objects.create(bulk_action=action, subject_ulid=held.job.job_ulid, outcome="refused", detail=mark)
    HousekeepingTask.objects.create(kind=mark, subject=mark, last_error=mark, failures=1, claimed_by=mark)
    personal_key(person(f"owner-{mark}"[:150]))
    PersonalKey.objects.update(name=mark)
    assert pool.pk


@pytest.fixture(scope="module")
def displayed(django_db_setup, django_db_blocker):
    """Every page as a superuser sees it, rendered once: of a busy scene, and of one row of every noun with evil texts."""
    with module_transaction(django_db_blocker), django_db_blocker.unblock():
        olga = client_of(person(NAME, is_superuser=True))
        one_of_each(EVIL)  # first: of events, the first of each kind is displayed
        busy()
        digests = {row.digest for model in (Worker, ApiToken, PersonalKey) for row in model.objects.all()}
        answers = {page: olga.get(page, follow=True) for page in all_pages()}
    texts = {page: answer.content.decode() for page, answer in answers.items()}
    return SimpleNamespace(
        texts=texts, codes={page: answer.status_code for page, answer in answers.items()}, digests=digests
    )


def test_every_page_is_displayed_or_refused(displayed):
    assert {page: code for page, code in displayed.codes.items() if code not in {200, 403}} == {}


def test_no_page_shows_a_lease_id_a_token_or_a_digest(displayed):
    assert displayed.digests
    for page, text in displayed.texts.items():
        assert not [secret for secret in (*SECRETS, *displayed.digests) if secret in text], page


def test_no_page_lets_what_tenants_and_workers_say_become_html(displayed):
    escaped = 0
    for page, text in displayed.texts.items():
        assert EVIL not in text, page
        escaped += "&lt;script&gt;alert(1)" in text
    assert escaped > len(nouns())


def test_no_page_allows_a_script_that_it_does_not_have(olga, scene):
    for page in (DASHBOARD, address(Job, "changelist"), address(Job, "change", scene.jobs["lost"].pk), "/admin/login/"):
        answer = olga.get(page)
        policy = dict(part.strip().split(" ", 1) for part in answer["Content-Security-Policy"].split(";"))
        assert "'unsafe-inline'" not in policy["script-src"]
        assert policy["frame-ancestors"] == "'none'"
        assert answer["X-Frame-Options"] == "DENY"
        assert "<script>" not in answer.content.decode()


def test_nobody_comes_in_without_a_login(client, scene):
    for page in all_pages():
        answer = client.get(page)
        assert (answer.status_code, answer.headers.get("Location", "").split("?")[0]) == (302, "/admin/login/"), page


@pytest.mark.parametrize("model", nouns(), ids=lambda model: model.__name__)
def test_staff_see_only_what_they_may_see(model, db):
    stranger = client_of(person("sven"))
    assert stranger.get(address(model, "changelist")).status_code == 403
    assert stranger.get(address(model, "add")).status_code == 403
    options = model._meta
    allowed = client_of(person("sara", f"{options.app_label}.view_{options.model_name}"))
    assert allowed.get(address(model, "changelist")).status_code == 200
    assert allowed.get(address(model, "add")).status_code == 403


@pytest.mark.parametrize(
    ("model", "guess"),
    [
        (Lease, "lease_ulid__startswith=rtl_"),
        (Lease, "final_digest__startswith=a"),
        (Job, "leases__lease_ulid__startswith=rtl_"),
        (Job, "state__startswith=q"),
        (Worker, "digest__startswith=a"),
        (ApiToken, "digest__startswith=a"),
        (PersonalKey, "digest__startswith=a"),
        (Membership, "user__password__startswith=a"),
    ],
)
def test_no_secret_can_be_guessed_through_a_lists_address(model, guess, olga, scene):
    """A parameter that no filter reads changes nothing, and the page says so."""
    page = address(model, "changelist")
    answer = olga.get(f"{page}?{guess}")
    assert list(answer.context["cl"].result_list) == list(olga.get(page).context["cl"].result_list)
    assert f"does not have the parameter {guess.partition('=')[0]}, which was ignored" in answer.content.decode()


def test_a_wrong_address_of_a_list_displays_the_list_with_a_note(olga, scene, caplog):
    lists = [address(model, "changelist") for model in nouns()]
    for page in lists:
        answer = olga.get(f"{page}?foo=bar&page=3&ordering=x&_facets=1")
        assert answer.status_code == 200, page
        text = answer.content.decode()
        assert "does not have the parameters foo, ordering, page, which were ignored" in text, page
        assert "?foo" not in text, "a link of the page"
        assert "&amp;foo" not in text, "a link of the page"
    jobs = address(Job, "changelist")
    answer = olga.get(f"{jobs}?p=4711&status=failed&foo=bar", follow=True)
    assert answer.redirect_chain == [(f"{jobs}?status=failed", 302)]
    assert "has no page 4711" in answer.content.decode()
    assert [record for record in caplog.records if record.exc_info] == []


def test_error_pages_of_the_admin_have_its_frame(olga, scene, monkeypatch, settings):
    """Navigation, the reader's name, and a text that says what to do; also where the error has no row and no form."""
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 1
    olga.raise_request_exception = False
    sven = client_of(person("sven"))
    many = {"reason": "x", "a": "1", "b": "2"}
    cancel = address(Job, "cancel", scene.jobs["running"].pk)
    monkeypatch.setattr(job_page, "job_page", broken)
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username=NAME))
    for status, answer in (
        (400, olga.post(cancel, many)),
        (403, sven.get(address(Job, "changelist"))),
        (403, strict.post(cancel, {"reason": "x"})),
        (404, olga.get("/admin/nowhere/")),
        (404, olga.get(address(Job, "cancel", 4711))),
        (500, olga.get(address(Job, "change", scene.jobs["running"].pk))),
    ):
        text = answer.content.decode()
        assert answer.status_code == status, text
        assert 'id="nav-sidebar"' in text, status
        assert 'href="/admin/"' in text, status
        assert ("Workers" in text) == (answer.wsgi_request.user.username != "sven"), (
            "the links that the reader may open"
        )
        assert answer["X-Request-Id"] in text, "what to look for in the log"


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def test_a_list_costs_the_same_with_many_rows_as_with_few(olga):
    lists = [address(model, "changelist") for model in nouns()]
    for mark in ("one", "two"):
        one_of_each(mark)
    few = {page: queries_of(olga, page) for page in lists}
    for mark in ("three", "four", "five"):
        one_of_each(mark)
    assert {page: queries_of(olga, page) for page in lists} == few
    assert max(few.values()) <= LISTS_AT_MOST, few


def queries_of(client, page: str) -> int:
    client.get(page)  # the first of a process fills Django's own caches
    with CaptureQueriesContext(
        connection,
    ) as seen:
        assert client.get(page).status_code == 200
    return len(seen)


NONSENSE = ("\0", "a\0b", "'", "%", "x" * 3000, "-1", "9" * 40, "2026-99-99", "0001-01-01", "9999-12-31", "\N{SNOWMAN}")


class TestRowsOfEveryNoun:
    """The rows are made once: each test is rolled back to them."""

    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def rows(django_db_setup, django_db_blocker):
        with module_transaction(django_db_blocker):
            with django_db_blocker.unblock():
                one_of_each("plain")
            yield

    @pytest.mark.parametrize("model", READ_ONLY, ids=lambda model: model.__name__)
    def test_what_is_history_cannot_be_edited_by_anybody(self, model, olga):
        row = model.objects.first()
        before = model.objects.filter(pk=row.pk).values().get()
        assert olga.post(address(model, "add"), {}).status_code == 403
        assert olga.post(address(model, "change", row.pk), {"state": "succeeded"}).status_code == 403
        assert olga.post(address(model, "delete", row.pk), {"post": "yes"}).status_code == 403
        action = {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"}
        olga.post(address(model, "changelist"), action)
        assert model.objects.filter(pk=row.pk).values().get() == before

    @pytest.mark.parametrize(
        "model", [Organization, Project, Plan, Pool, Worker, ApiToken], ids=lambda model: model.__name__
    )
    def test_names_that_jobs_carry_are_never_free_again(self, model, olga):
        row = model.objects.first()
        assert olga.post(address(model, "delete", row.pk), {"post": "yes"}).status_code == 403
        assert model.objects.filter(pk=row.pk).exists()

    def test_nonsense_in_an_address_is_no_crash(self, olga):
        """A filter or page that refuses its value redirects to the address without it, where the others are read."""
        # Refusals in JSON: a page of one is rendered in the frame of the admin, which is tested above.
        reader = client_of(User.objects.get(username=NAME), headers={"Accept": "application/json"})
        for model in nouns():
            page = address(model, "changelist")
            names = [name for found in admin.site._registry[model].list_filter for name in parameters_of(found)]
            for value in NONSENSE if names else ("a\0b", "'", "%", "9" * 40):
                parameters = dict.fromkeys([*names, "q", "o", "p"], value)
                assert reader.get(page, parameters, follow=True).status_code == 200, (page, value)
            for key in ("0", "-1", "9" * 40, "x", "%00", "rtj_x", f"rtj_{'0' * 26}"):
                assert reader.get(f"{page}{key}/change/").status_code in {302, 404}, (page, key)

    def test_staff_without_a_permission_open_no_url_of_any_page(self, db):
        """Neither a row's page nor its history, a button, a download or the address of a script; existing or not."""
        # Refusals in JSON: a page of one is rendered in the frame of the admin, which is tested above.
        sven, opened = client_of(person("sven"), headers={"Accept": "application/json"}), []
        for model in nouns():
            page, row = admin.site._registry[model], model.objects.order_by("pk").last()
            keys = [str(row.pk)] if row else []
            for pattern in filter(lambda found: found.name, page.get_urls()):  # not Django's redirect of old addresses
                for key in (*keys, "0"):
                    path = address(model, "changelist") + re.sub(r"<[^>]+>", key, str(pattern.pattern))
                    for send in (sven.get, sven.post):
                        answer = send(path)
                        if answer.status_code != 403:
                            opened.append(
                                f"{answer.status_code} {send.__name__} {path} {answer.headers.get('Location')}"
                            )
        assert opened == [], "\n".join(opened)

    def test_a_list_of_millions_is_neither_counted_nor_leafed_through(self, olga):
        for model in set(READ_ONLY) - {Limit}:  # whose rows count the jobs that run under each
            page = address(model, "changelist")
            with CaptureQueriesContext(connection) as seen:
                olga.get(page)
            assert not [query["sql"] for query in seen if "COUNT(" in query["sql"].upper()], page
            assert olga.get(f"{page}?p=200").status_code == 200
            assert olga.get(f"{page}?p=201").status_code == 302
            order = olga.get(f"{page}?o=2.5").context["cl"].queryset.query.order_by
            assert set(order) <= {"-id", "-created_at"}, "sorted by what has no index"


OLD_WORDS = (
    "Is anything wrong", "needs a look", "looks again", "set aside", "to mend", "room for", "Failed last", ">Trail<",
    "the trail", "Operator events", ">Work<", "Handed to a worker", "Taken up", "Went on", "Asked for", "Left behind",
    "Starts after", "Waited for by", "New programs", "Sent from", "Least isolation", ">Needs<", "Why made", "as text",
    "the clock", "core policy", "number 1", "Number 1", "no worker fits", "Not obeyed", "Handed out", "Resend run",
    ">Taken<", "Last heard", "Whose jobs", "Lets through", ">Ends<", ">At once<", "of a key", "calm time", "Held back",
    "Tries one", ">Given<", "Trusts lease ids", "oldest first", "Jobs at once", "I have copied", "Batchs", "Api token",
    "emberships", ">at once<", "told to stop", "BatchState", ">Waited<", ">Ran<", "UPLOADED", "Run again", ">Lift<",
)  # fmt: skip


def test_pages_use_the_terms_that_operators_know(displayed):
    for page, text in displayed.texts.items():
        shown = re.sub(r"(?<=>)\s+|\s+(?=<)", "", text)  # the theme surrounds labels with white space
        assert not [word for word in OLD_WORDS if word in shown], page


def test_no_column_has_the_name_of_a_model_field_by_accident():
    """Django would display the model's field and never call the method of the page."""
    for model in nouns():
        page, fields = admin.site._registry[model], {field.name for field in model._meta.concrete_fields}
        columns = {name for name in page.list_display if name in vars(type(page)) and callable(getattr(page, name))}
        assert not columns & fields, model


def test_the_root_redirects_to_the_admin(client, db):
    assert client.get("/")["Location"] == "/admin/"
