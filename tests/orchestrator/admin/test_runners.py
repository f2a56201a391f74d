"""Runners, hardware specs and keys of the Bencher API in the admin: each change is a button, each key is displayed once."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from orchestrator.admin.jobs.actions import available_actions
from orchestrator.core.cause import Cause
from orchestrator.protocols.bencher.authentication import authenticate_runner
from orchestrator.results.models import Report
from orchestrator.results.outputs import encode_output
from orchestrator.services import expiry, late_results, personal_keys, worker_state
from orchestrator.services.runner_channels import open_channels, report_channels
from runtime_jobs.errors import OperatorOnly, ResourceConflict
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import ApiToken, Job, OperatorEvent, PersonalKey
from tests.factories import (
    OPERATOR,
    HardwareSpecFactory,
    ProjectFactory,
    RunnerFactory,
    WorkerFactory,
    personal_key,
    project_key,
)
from tests.orchestrator.admin.conftest import client_of, person
from tests.orchestrator.admin.pages import address
from tests.orchestrator.admin.test_job_actions import messages_of
from tests.orchestrator.results.conftest import HARDWARE_SPEC, execution
from tests.orchestrator.results.conftest import store as store  # noqa: PLC0414 - a fixture
from tests.tampering import overwrite_jobs
from workers.models import HardwareSpec, Runner, RunnerChannels, Worker
from workers.registry.tokens import digest_of

pytestmark = pytest.mark.django_db
LIST = "/admin/workers/runner/"
SPECS = "/admin/workers/hardwarespec/"
KEYS = "/admin/runtime_jobs/personalkey/"
TOKENS = "/admin/runtime_jobs/apitoken/"
WHY = {"reason": "planned"}
SPEC_FORM = {
    "name": "Two cores", "slug": "", "os": "linux", "architecture": "x86_64", "sandbox": "", "cpu": "2",
    "memory": str(4 << 30), "disk": str(10 << 30),
}  # fmt: skip


@pytest.fixture
def admin(db) -> Client:
    """A server admin: staff with the one permission."""
    return client_of(person("ada", "workers.change_worker"))


@pytest.fixture
def runner(db):
    return RunnerFactory(slug="rack-7", name="Rack 7")


def page_of(runner) -> str:
    return address(Runner, "change", runner.pk)


def buttons(client, row) -> set[str]:
    text = client.get(address(type(row), "change", row.pk)).content.decode()
    return set(re.findall(rf'/{row.pk}/([a-z-]+)/"', text)) - {"history", "change"}


# --- runners ----------------------------------------------------------------------------------------------------------


def test_a_new_runner_has_its_key_displayed_once(admin):
    answer = admin.post(f"{LIST}add/", {"name": "Rack 7", "slug": ""})
    key = answer.context["token"]
    assert key in answer.content.decode()
    assert 'data-copy="#token"' in answer.content.decode()
    assert "no-store" in answer["Cache-Control"]
    runner = Worker.objects.get()
    assert (runner.slug, runner.digest, runner.pool.slug) == ("rack-7", digest_of(key), "bare-metal")
    assert authenticate_runner(f"Bearer {key}", "rack-7").pk == runner.pk
    for page in (LIST, page_of(runner), address(OperatorEvent, "changelist"), f"{page_of(runner)}../rotate-key/"):
        text = admin.get(page).content.decode()
        assert key not in text
        assert runner.digest not in text


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"name": " "}, {"slug": "A"}, {"slug": "rack-6"}, {"name": "rack 6"}, {"name": "ä" * 40}]
)
def test_a_runner_that_makes_no_sense_is_not_made(admin, wrong):
    WorkerFactory(slug="rack-6")
    assert admin.post(f"{LIST}add/", {"name": "Rack 7", "slug": ""} | wrong).status_code == 400
    assert Worker.objects.count() == 1


def test_the_list_has_runners_only(admin, runner):
    WorkerFactory(slug="build-01")
    text = admin.get(LIST).content.decode()
    assert "rack-7" in text
    assert "build-01" not in text


def test_rotation_displays_the_new_key_and_refuses_the_old_one(admin, runner):
    answer = admin.post(f"{LIST}{runner.pk}/rotate-key/", WHY)
    key = answer.context["token"]
    assert authenticate_runner(f"Bearer {key}", "rack-7").pk == runner.pk
    event = OperatorEvent.objects.get()
    assert (event.action, event.actor, event.reason) == ("runner.key_rotated", "operator:ada", "planned")
    runner.refresh_from_db()
    assert runner.digest == digest_of(key)


def test_archive_and_restore(admin, runner):
    assert messages_of(admin.post(f"{LIST}{runner.pk}/archive/", WHY)) == ["rack-7: archived."]
    assert buttons(admin, Runner.objects.get()) == {"rename", "add-spec", "remove-spec", "restore"}
    assert "archived. Restore it" in messages_of(admin.post(f"{LIST}{runner.pk}/rotate-key/", WHY))[0]
    assert messages_of(admin.post(f"{LIST}{runner.pk}/restore/", WHY))[-1] == "rack-7: restored."
    assert buttons(admin, Runner.objects.get()) == {"rename", "add-spec", "remove-spec", "rotate-key", "archive"}


def test_specs_are_added_and_removed(admin, runner):
    spec = HardwareSpecFactory(slug="two-cores")
    assert messages_of(admin.post(f"{LIST}{runner.pk}/add-spec/", WHY | {"spec": spec.pk})) == [
        "rack-7: provides two-cores."
    ]
    assert "two-cores" in admin.get(page_of(runner)).content.decode()
    assert admin.post(f"{LIST}{runner.pk}/add-spec/", WHY | {"spec": spec.pk}).status_code == 400
    assert messages_of(admin.post(f"{LIST}{runner.pk}/remove-spec/", WHY | {"spec": spec.pk})) == [
        "rack-7: no longer provides two-cores."
    ]
    assert list(OperatorEvent.objects.order_by("pk").values_list("action", "reason")) == [
        ("runner.spec_added", "planned"),
        ("runner.spec_removed", "planned"),
    ]


def test_a_runner_is_renamed(admin, runner):
    assert messages_of(admin.post(f"{LIST}{runner.pk}/rename/", WHY | {"name": "Rack 8"})) == ["rack-7: renamed."]
    assert admin.post(f"{LIST}{runner.pk}/rename/", WHY | {"name": " "}).status_code == 400
    assert Runner.objects.get().name == "Rack 8"


@pytest.mark.parametrize("button", ["rename", "add-spec", "remove-spec", "rotate-key", "archive", "restore"])
def test_no_button_acts_without_a_reason_or_without_the_permission(admin, runner, button):
    before = Worker.objects.values().get()
    assert admin.post(f"{LIST}{runner.pk}/{button}/", {"reason": ""}).status_code == 400
    viewer = client_of(person("vera", "workers.view_runner", "workers.view_worker"))
    assert viewer.get(page_of(runner)).status_code == 200
    assert viewer.post(f"{LIST}{runner.pk}/{button}/", WHY).status_code == 403
    assert viewer.post(f"{LIST}add/", {"name": "a"}).status_code == 403
    assert Worker.objects.values().get() == before


def test_the_history_of_a_runner_is_its_operator_events(admin, runner):
    location = admin.get(address(Runner, "history", runner.pk))["Location"]
    assert location.endswith(f"target={runner.worker_id}")


def test_an_archived_runner_on_the_page_of_workers_can_only_be_revoked(olga, runner):
    olga.post(f"{LIST}{runner.pk}/archive/", WHY)
    assert buttons(olga, Worker.objects.get()) == {"revoke"}
    assert "Archived" in olga.get("/admin/workers/worker/").content.decode()


@pytest.mark.parametrize("is_archived", [False, True])
def test_a_runner_gets_no_token_of_the_native_api(olga, runner, is_archived):
    """An archived runner could else open native sessions, and one in use would lose its key."""
    if is_archived:
        olga.post(f"{LIST}{runner.pk}/archive/", WHY)
    worker, events = Worker.objects.get(), OperatorEvent.objects.count()
    assert "rotate" not in buttons(olga, worker)
    with pytest.raises(ResourceConflict, match="rack-7 is a runner and has no token"):
        worker_state.rotate_worker_token(worker_id=runner.worker_id, cause=Cause(OPERATOR))
    answer = olga.post(f"/admin/workers/worker/{runner.pk}/rotate/", WHY)
    assert "rack-7 is a runner and has no token. Rotate its key" in messages_of(answer)[0]
    assert (Worker.objects.get().digest, OperatorEvent.objects.count()) == (worker.digest, events)


def test_the_sidebar_has_the_pages_for_those_who_may_use_them(admin, viewer):
    text = admin.get(LIST).content.decode()
    assert LIST in text
    assert SPECS in text
    assert KEYS not in text
    assert LIST not in viewer.get("/admin/workers/worker/").content.decode()


# --- specs ------------------------------------------------------------------------------------------------------------


def test_a_spec_is_created(admin):
    assert admin.post(f"{SPECS}add/", SPEC_FORM | {"fallback": "on"}).status_code == 302
    spec = HardwareSpec.objects.get()
    assert (spec.slug, spec.sandbox, spec.memory, bool(spec.fallback_at)) == ("two-cores", None, 4 << 30, True)
    text = admin.get(address(HardwareSpec, "change", spec.pk)).content.decode()
    assert "2 CPUs, 4 GiB memory, 10 GiB disk" in text


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"cpu": "0"}, {"memory": "-1"}, {"os": "bsd"}, {"sandbox": "docker"}, {"slug": "A"}]
)
def test_a_spec_that_makes_no_sense_is_not_made(admin, wrong):
    assert admin.post(f"{SPECS}add/", SPEC_FORM | wrong).status_code == 400
    assert not HardwareSpec.objects.exists()


def test_the_buttons_of_a_spec(admin):
    spec = HardwareSpecFactory(slug="two-cores")

    def press(button: str, **values: str) -> str:
        return messages_of(admin.post(f"{SPECS}{spec.pk}/{button}/", WHY | values))[-1]

    assert buttons(admin, spec) == {"rename", "set-fallback", "archive", "remove"}
    assert press("set-fallback") == "two-cores: is the fallback."
    assert buttons(admin, spec) == {"rename", "clear-fallback", "archive", "remove"}
    assert press("clear-fallback") == "two-cores: is no fallback."
    assert press("rename", name="Other") == "two-cores: renamed."
    assert press("archive") == "two-cores: archived."
    assert buttons(admin, spec) == {"rename", "restore", "remove"}
    assert press("restore") == "two-cores: restored."
    RunnerFactory(specs=[spec])
    assert "associated with runners (1)" in press("remove")
    spec.worker_specs.all().delete()
    assert admin.post(f"{SPECS}{spec.pk}/remove/", WHY)["Location"] == SPECS
    assert not HardwareSpec.objects.exists()
    assert OperatorEvent.objects.exclude(reason="planned").count() == 0


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_jwt", [False, True])
def test_a_personal_key_is_displayed_once_and_works_until_it_is_revoked(olga, is_jwt):
    ada = person("ada", "workers.change_worker")
    answer = olga.post(f"{KEYS}add/", {"user": ada.pk, "name": "laptop"} | ({"is_jwt": "on"} if is_jwt else {}))
    key, row = answer.context["token"], PersonalKey.objects.get()
    assert (row.digest, row.is_jwt, row.created_by) == (digest_of(key), is_jwt, "olga")

    def status() -> int:
        return Client().get("/v0/runners", headers={"Authorization": f"Bearer {key}"}).status_code

    assert status() == 200
    for page in (KEYS, f"{KEYS}{row.pk}/change/", address(OperatorEvent, "changelist"), f"{KEYS}{row.pk}/revoke/"):
        text = olga.get(page).content.decode()
        assert key not in text
        assert row.digest not in text
    assert messages_of(olga.post(f"{KEYS}{row.pk}/revoke/", WHY)) == ["Personal key laptop (ada) revoked."]
    assert status() == 401
    assert f"/{row.pk}/revoke/" not in olga.get(f"{KEYS}{row.pk}/change/").content.decode()


def test_personal_keys_need_their_permissions(db):
    personal_key(User.objects.create(username="uma"))
    row = PersonalKey.objects.get()
    viewer = client_of(person("vera", "runtime_jobs.view_personalkey"))
    assert viewer.get(f"{KEYS}{row.pk}/change/").status_code == 200
    assert viewer.post(f"{KEYS}add/", {"user": row.user_id, "name": "a"}).status_code == 403
    assert viewer.post(f"{KEYS}{row.pk}/revoke/", WHY).status_code == 403


@pytest.mark.parametrize("form", [{}, {"is_jwt": "on"}])
def test_staff_creates_keys_of_itself_only(form):
    """A key of a superuser would make its creator a server admin."""
    root = User.objects.create(username="ruth-of-operations", is_staff=True, is_superuser=True)
    later = User.objects.create(username="later")  # may get permissions after the key
    low = person("low", "runtime_jobs.add_personalkey")
    client = client_of(low)
    page = client.get(f"{KEYS}add/").content.decode()
    assert "ruth-of-operations" not in page
    assert f'<option value="{low.pk}" selected' in page
    for other in (root, later):
        answer = client.post(f"{KEYS}add/", {"user": other.pk, "name": "mine"} | form)
        assert answer.status_code == 400
        assert not PersonalKey.objects.exists()
    key = client.post(f"{KEYS}add/", {"user": low.pk, "name": "mine"} | form).context["token"]
    assert PersonalKey.objects.get().user == low
    assert Client().get("/v0/runners", headers={"Authorization": f"Bearer {key}"}).status_code == 403


def test_the_operation_refuses_keys_of_other_people_too(db):
    low, root = User.objects.create(username="low", is_staff=True), User.objects.create(username="root")
    arguments = {"name": "mine", "cause": Cause(OPERATOR)}
    with pytest.raises(OperatorOnly, match="Only a superuser creates keys of other people"):
        personal_keys.create_personal_key(user=root, creator=low, **arguments)
    assert not PersonalKey.objects.exists()
    assert not OperatorEvent.objects.exists()
    personal_keys.create_personal_key(user=low, creator=low, **arguments)
    root.is_superuser = True
    personal_keys.create_personal_key(user=low, creator=root, **arguments)
    assert PersonalKey.objects.count() == 2


def test_a_project_key_is_created_with_the_api_tokens(olga):
    project = ProjectFactory()
    form = {"organization": project.organization.pk, "project": project.pk, "name": "ci", "scopes": []}
    key = olga.post(f"{TOKENS}add/", form).context["token"]
    assert re.fullmatch(r"bencher_run_[0-9A-Za-z]{30}", key)
    row = ApiToken.objects.get()
    assert (row.project, row.scopes, row.digest) == (project, [], digest_of(key))
    assert "web" in olga.get(TOKENS).content.decode()


@pytest.mark.parametrize("wrong", ["scopes", "organization"])
def test_a_project_key_that_makes_no_sense_is_not_made(olga, wrong):
    project, other = ProjectFactory(), ProjectFactory()
    form = {"organization": project.organization.pk, "project": project.pk, "name": "ci", "scopes": []}
    form |= {"scopes": ["jobs:read"]} if wrong == "scopes" else {"organization": other.organization.pk}
    assert olga.post(f"{TOKENS}add/", form).status_code == 400
    assert not ApiToken.objects.exists()


def test_no_key_can_be_guessed_through_a_lists_address(olga, runner):
    personal_key(User.objects.create(username="uma"))
    project_key(ProjectFactory())
    for page in (LIST, KEYS, TOKENS):
        guess, whole = olga.get(f"{page}?digest__startswith=a"), olga.get(page)
        assert list(guess.context["cl"].result_list) == list(whole.context["cl"].result_list) != []
        assert "does not have the parameter digest__startswith" in guess.content.decode()


# --- version and channels of a runner ---------------------------------------------------------------------------------


def test_the_pages_display_version_specs_and_the_channels_of_all_processes(admin, django_assert_max_num_queries):
    runner = RunnerFactory(slug="rack-7", specs=[HardwareSpecFactory(slug="two-cores")])
    idle = RunnerFactory(slug="rack-8")
    report_channels("web-1", {runner.pk: {"executing": 2, "idle": 1}, idle.pk: {"polling": 1}}, {runner.pk: "0.6.12"})
    report_channels("web-2", {runner.pk: {"idle": 1}}, {})
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", admin.get(LIST).content.decode()))
    assert "2 executing, 2 idle" in text
    assert "1 polling" in text
    page = admin.get(page_of(runner)).content.decode()
    assert "0.6.12" in page
    assert "2 executing, 2 idle" in page
    assert address(HardwareSpec, "change", runner.specs.get().pk) in page
    for number in range(5):
        RunnerFactory(slug=f"more-{number}")
    with django_assert_max_num_queries(9):
        admin.get(LIST)


def test_a_process_that_has_ended_or_was_killed_has_no_channels(admin, runner):
    report_channels("web-1", {runner.pk: {"idle": 1}}, {})
    assert open_channels([runner]) == {runner.pk: {"idle": 1}}
    report_channels("web-1", {}, {})
    assert open_channels([runner]) == {runner.pk: {}}
    report_channels("web-2", {runner.pk: {"idle": 1}}, {})
    RunnerChannels.objects.update(expires_at=timezone.now())
    assert open_channels([runner]) == {runner.pk: {}}


def test_a_job_page_has_image_spec_iterations_report_minutes_and_output(olga):
    run = execution(image="adapter:v1", iterations=3, cmd=("bench", "--all"), env={"TOKEN": "sesame"})
    spec = HardwareSpecFactory(uuid=HARDWARE_SPEC, slug="two-cores")
    run.store(b"{}")
    run.complete(seconds=61)
    text = olga.get(address(Job, "change", run.job.job_ulid)).content.decode()
    facts = dict(re.findall(r"<dt>([^<]*)</dt><dd>(.*?)</dd>", text))
    plain = {label: re.sub(r"<[^>]+>", "", value) for label, value in facts.items()}
    assert plain["Image"] == "adapter:v1"
    assert plain["Image digest"].startswith("sha256:")
    assert (plain["Command"], plain["Iterations"], plain["Environment"]) == ("bench --all", "3", "TOKEN")
    assert plain["Hardware spec"] == "two-cores"
    assert address(HardwareSpec, "change", spec.pk) in facts["Hardware spec"]
    assert address(Report, "change", run.report.pk) in facts["Report"]
    assert plain["Billed minutes"] == "2"
    assert plain["Stored output"].endswith(f"/output/v0/jobs/{uuid_of(run.job.job_ulid)}")
    assert "Required capabilities" not in plain, "the spec is the only requirement"
    assert "sesame" not in text


def test_a_job_page_displays_the_output_of_an_ended_job_and_no_log(olga):
    run = execution()
    iterations = [
        {"exit_code": 0, "stdout": "first\x1b[1m", "stderr": "warned"},
        {"exit_code": 7, "output": {"a": "b"}},
    ]
    run.store(encode_output(iterations))
    late_results.settle(job_ulid=run.complete().job_ulid)
    page = olga.get(address(Job, "change", run.job.job_ulid))
    shown = page.context["page"].log
    assert shown.text == "--- iteration 1, exit code 0\nfirst\nwarned\n--- iteration 2, exit code 7\n"
    assert "Raw log" not in page.content.decode()
    overwrite_jobs(Job.objects.filter(pk=run.job.pk), result={"output": str(uuid_of(run.job.job_ulid)) + "_missing"})
    assert olga.get(address(Job, "change", run.job.job_ulid)).context["page"].log.text == ""


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"results":7}', b'{"results":[7]}', b'{"results":[{"stdout":7}]}'])
def test_a_job_page_is_displayed_whatever_its_output_is(olga, body):
    run = execution()
    run.store(body)
    late_results.settle(job_ulid=run.complete().job_ulid)
    assert olga.get(address(Job, "change", run.job.job_ulid)).context["page"].log.text == ""


@pytest.mark.parametrize("state", ["lost", "failed"])
def test_a_job_with_a_report_offers_no_retry(olga, state):
    run = execution()
    expiry.expire(job_ulid=run.job.job_ulid)
    if state == "failed":
        late_results.give_up(job_ulid=run.job.job_ulid, now=timezone.now() + timedelta(days=1))
    assert run.fresh().state == state
    assert available_actions(run.job) == ({"cancel"} if state == "lost" else set())


def test_a_job_page_of_a_job_without_config_is_displayed(olga):
    run = execution()
    Job.objects.filter(pk=run.job.pk).update(spec={"spec": HARDWARE_SPEC, "least_isolation": "none", "config": {}})
    assert olga.get(address(Job, "change", run.job.job_ulid)).status_code == 200
