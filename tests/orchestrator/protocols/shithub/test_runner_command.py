"""`manage.py runner`: what it prints, stores and refuses."""

import hashlib
import io
import json
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

from orchestrator.core import counters
from orchestrator.core.cause import Cause
from orchestrator.services.actions_runners import DEFAULT_LABELS
from runtime_jobs.db_time import database_now
from runtime_jobs.models import OperatorEvent
from tests.factories import PoolFactory, RunnerPoolFactory, WorkerFactory
from tests.orchestrator.protocols.shithub.conftest import error_of
from tests.orchestrator.protocols.shithub.runner import RunnerClient
from tests.orchestrator.protocols.shithub.world import start_run
from workers.models import ActionsRunner, RegistrationToken, Worker
from workers.registry.models import WorkerState

pytestmark = pytest.mark.django_db


def runner(*arguments: str) -> tuple[str, str]:
    """Run the command; return its output and its warnings."""
    out, err = io.StringIO(), io.StringIO()
    call_command("runner", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def registered(name: str = "runner-1", *arguments: str) -> dict[str, object]:
    out, err = runner("register", "--name", name, "--output", "json", *arguments)
    assert err == ""
    return json.loads(out)


def test_register_prints_the_token_once_and_stores_its_hash(counted):
    found = registered("Runner_1-a", "--labels", "linux, gpu,linux", "--capacity", "4")
    token = str(found.pop("token"))
    row = ActionsRunner.objects.get()
    assert found == {"id": row.pk, "name": "Runner_1-a", "labels": ["linux", "gpu"], "capacity": 4}
    assert (len(token), token == token.lower(), bytes.fromhex(token) != b"") == (64, True, True)
    assert bytes(RegistrationToken.objects.get().digest) == hashlib.sha256(bytes.fromhex(token)).digest()
    assert counted == [counters.REGISTRATIONS]
    assert token not in str(OperatorEvent.objects.values())
    assert OperatorEvent.objects.get().action == "actions_runner.registered"
    assert row.worker.slug == "runner-1-a"
    assert RunnerClient(token).heartbeat().status_code == 204


def test_register_has_the_defaults_of_the_document():
    found = registered()
    assert (found["labels"], found["capacity"]) == (list(DEFAULT_LABELS), 1)
    row = ActionsRunner.objects.get()
    assert (row.isolation, row.worker.pool.slug, row.worker.capabilities) == ("namespaces", "shared-linux", [])


def test_the_text_output_has_the_same_keys_and_a_warning():
    out, err = runner("register", "--name", "a", "--labels", "x,y", "--expires-in", "30d")
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    assert list(lines) == ["id", "name", "labels", "capacity", "token", "token_expires_at"]
    assert (lines["labels"], lines["capacity"]) == ("x,y", "1")
    assert len(err.splitlines()) == 1
    left = RegistrationToken.objects.get().expires_at - database_now()
    assert timedelta(days=29) < left <= timedelta(days=30)


@pytest.mark.parametrize("text", ["0"])
def test_an_expiry_of_zero_is_none(text):
    assert "token_expires_at" not in registered("a", "--expires-in", text)
    assert RegistrationToken.objects.get().expires_at is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("--name", ""),
        ("--name", "a b"),
        ("--name", "ä"),
        ("--name", "x" * 101),
        ("--name", "a\n"),
        ("--name", "a", "--capacity", "0"),
        ("--name", "a", "--capacity", "65"),
        ("--name", "a", "--labels", "a b"),
        ("--name", "a", "--labels", "x" * 101),
        ("--name", "a", "--pool", "absent"),
        ("--name", "a", "--pool", "bare-metal"),
    ],
    ids=str,
)
def test_a_bad_value_is_one_line_and_stores_nothing(arguments):
    RunnerPoolFactory()
    with pytest.raises(CommandError) as refused:
        runner("register", *arguments)
    assert len(str(refused.value).splitlines()) == 1
    assert not Worker.objects.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--name", "a", "--expires-in", "soon"),
        ("--name", "a", "--expires-in", "-1h"),
        ("--name", "a", "--isolation", "strong"),
        ("--name", "a", "--capacity", "many"),
        (),
    ],
    ids=str,
)
def test_an_argument_that_cannot_be_read_is_refused(arguments):
    with pytest.raises((CommandError, SystemExit)):
        runner("register", *arguments)
    assert not Worker.objects.exists()


def test_the_same_name_again_is_refused():
    registered()
    with pytest.raises(CommandError, match="exists already"):
        runner("register", "--name", "runner-1")
    assert ActionsRunner.objects.count() == 1


def test_two_names_may_have_the_same_slug_and_workers_keep_theirs():
    WorkerFactory(slug="runner-1")
    registered("runner-1")
    registered("Runner_1")
    slugs = set(Worker.objects.values_list("slug", flat=True))
    assert len(slugs) == 3
    assert all(len(slug) <= 63 for slug in slugs)
    registered("x" * 100)


def test_a_pool_can_be_named():
    PoolFactory(slug="builders")
    registered("a", "--pool", "builders", "--isolation", "microvm")
    row = ActionsRunner.objects.get()
    assert (row.worker.pool.slug, row.isolation) == ("builders", "microvm")


def test_list_shows_state_and_load_and_no_token():
    token = registered()["token"]
    start_run()
    RunnerClient(str(token)).claim()
    out, _ = runner("list", "--output", "json")
    (found,) = json.loads(out)
    assert (found["name"], found["state"], found["running"]) == ("runner-1", "active", 1)
    assert found["last_heartbeat_at"]
    text, _ = runner("list")
    assert text.startswith(f"{found['id']} runner-1 active 1/1 shared-linux ")
    assert token not in out + text


def test_drain_and_undrain():
    registered()
    for name in (["--name", "runner-1"], ["runner-1"]):  # with the option and without it
        assert runner("drain", *name, "--reason", "kernel")[0] == "runner-1: draining\n"
    assert Worker.objects.get().state == WorkerState.DRAINING
    assert OperatorEvent.objects.latest("pk").reason == "kernel"
    assert runner("undrain", "--name", "runner-1")[0] == "runner-1: active\n"
    assert Worker.objects.get().state == WorkerState.ACTIVE


def test_a_rotated_token_works_beside_the_old_one_for_the_overlap():
    old = RunnerClient(str(registered()["token"]))
    out, _ = runner("rotate-token", "--name", "runner-1", "--overlap", "1h", "--output", "json")
    new = RunnerClient(json.loads(out)["token"])
    assert [client.heartbeat().status_code for client in (old, new)] == [204, 204]
    RegistrationToken.objects.filter(expires_at__isnull=False).update(expires_at=database_now())
    error_of(old.heartbeat(), 401)
    assert new.heartbeat().status_code == 204


def test_an_overlap_never_extends_a_token_that_expires_earlier():
    registered("runner-1", "--expires-in", "60s")
    expiry = RegistrationToken.objects.get().expires_at
    runner("rotate-token", "--name", "runner-1", "--overlap", "1h", "--output", "json")
    assert RegistrationToken.objects.order_by("pk").first().expires_at == expiry


def test_a_rotation_without_overlap_ends_the_old_token_at_once():
    old = RunnerClient(str(registered()["token"]))
    runner("rotate-token", "--name", "runner-1", "--overlap", "0", "--output", "json")
    error_of(old.heartbeat(), 401)


def test_a_revocation_is_final_and_ends_jobs():
    client = RunnerClient(str(registered()["token"]))
    started = start_run()
    claimed = client.claim()
    claimed.run()
    assert runner("revoke", "--name", "runner-1")[0] == "runner-1: revoked, 1 leases ended\n"
    started.job.refresh_from_db()
    assert started.job.failure_reason == "worker_lost"
    error_of(client.heartbeat(), 401)
    error_of(claimed.check_cancel(), 401)
    assert runner("revoke", "--name", "runner-1")[0] == "runner-1: revoked, 0 leases ended\n"
    with pytest.raises(CommandError, match="revoked"):
        runner("rotate-token", "--name", "runner-1")
    with pytest.raises(CommandError):
        runner("undrain", "--name", "runner-1")


@pytest.mark.parametrize("action", ["drain", "undrain", "rotate-token", "revoke"])
def test_a_runner_that_does_not_exist_is_one_line(action):
    with pytest.raises(CommandError, match="does not exist") as refused:
        runner(action, "--name", "absent")
    assert len(str(refused.value).splitlines()) == 1


def test_a_runner_of_workflow_jobs_gets_no_token_of_the_native_api():
    from orchestrator.services import worker_state  # noqa: PLC0415
    from runtime_jobs.errors import ResourceConflict  # noqa: PLC0415
    from tests.factories import OPERATOR  # noqa: PLC0415

    registered()
    with pytest.raises(ResourceConflict, match="registration token"):
        worker_state.rotate_worker_token(worker_id=Worker.objects.get().worker_id, cause=Cause(OPERATOR))
