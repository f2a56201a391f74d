"""`/v0/projects/{project}/jobs`: each rule of contract 2.10."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.core.files.storage import InMemoryStorage, storages
from django.db import connection, transaction

from leases.models import Lease
from leases.scheduling.claims import Offer
from orchestrator.audit.runner import run_audit
from orchestrator.protocols.bencher.jobs.views import with_status
from orchestrator.protocols.bencher.states import BencherStatus, job_status
from orchestrator.results.outputs import encode_output, result_naming, write_output
from orchestrator.results.processing import process, store_output
from orchestrator.selectors.pending_reasons.reason import late_result_reason
from orchestrator.services import cancellation, claiming, expiry, heartbeat, job_end, late_results
from runtime_jobs.db_time import database_now
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason, JobState
from tests.api_client import Caller
from tests.factories import ALICE, RunnerFactory, api_token, project_key, submitted_steps
from tests.orchestrator.protocols.bencher.runs.world import new_person, new_project, new_spec, refused
from tests.runtime_jobs.test_oci import submitted_oci
from tests.tampering import overwrite_jobs

pytestmark = pytest.mark.django_db
RESULTS = [{"exit_code": 0, "stdout": "12.5 ns", "output": {"\0bencher": "{}", "a b": "\ufffd"}}]


@pytest.fixture(autouse=True)
def audited(db):
    yield
    assert [str(finding) for finding in run_audit(chains=True)] == []


@pytest.fixture(autouse=True)
def store(monkeypatch):
    """Outputs in memory."""
    memory = InMemoryStorage()
    monkeypatch.setitem(storages._storages, "outputs", memory)
    return memory


@pytest.fixture
def spec():
    return new_spec()


@pytest.fixture
def project(spec):
    return new_project("adapter")


@pytest.fixture
def runner(spec):
    return RunnerFactory(specs=[spec])


@pytest.fixture
def mia(project):
    return new_person("mia", project.organization).caller


def submit(project, spec, **changes) -> Job:
    return submitted_oci(project, hardware_spec=str(spec.uuid), project=str(project.uuid), **changes)


def claim(runner, spec) -> Lease:
    offer = Offer(runner.worker_id, runner.pool.slug, ("oci",), frozenset({spec.label}), "microvm")
    return claiming.claim(worker=runner, offer=offer, acknowledge=True).lease


def execute(lease, runner) -> None:
    heartbeat.report(lease_ulid=lease.lease_ulid, worker=runner, phase="executing")


def path(project, job=None) -> str:
    name = project.public_slug
    return f"/v0/projects/{name}/jobs" + (f"/{uuid_of(job.job_ulid)}" if job else "")


def read(caller, project, job):
    answer = caller.get(path(project, job))
    assert answer.status_code == 200, answer.content
    return answer.json()


class TestDocument:
    def test_a_pending_job(self, mia, project, spec):
        job = submit(project, spec, env={"TOKEN": "sesame"})
        body = read(mia, project, job)
        assert body["uuid"] == str(uuid_of(job.job_ulid))
        nothing = {"runner": None, "claimed": None, "started": None, "completed": None}
        assert body["status"] == "pending"
        assert {name: body[name] for name in nothing} == nothing
        assert body["spec"]["uuid"] == str(spec.uuid)
        assert set(body) == {*nothing, "uuid", "job_id", "status", "spec", "created", "modified"}

    def test_the_config_is_never_present(self, mia, project, spec, runner):
        job = submit(project, spec, env={"TOKEN": "sesame"})
        claim(runner, spec)
        for answer in (mia.get(path(project)), mia.get(path(project, job))):
            assert b"sesame" not in answer.content
            assert b"config" not in answer.content

    def test_times_and_runner_of_a_claimed_and_a_running_job(self, mia, project, spec, runner):
        job = submit(project, spec)
        lease = claim(runner, spec)
        body = read(mia, project, job)
        assert (body["status"], body["runner"], body["started"]) == ("claimed", str(runner.uuid), None)
        assert body["claimed"] is not None
        execute(lease, runner)
        body = read(mia, project, job)
        assert (body["status"], body["completed"]) == ("running", None)
        assert body["started"] is not None

    def test_completed_is_set_for_failed_and_canceled_jobs_too(self, mia, project, spec, runner):
        failed, stopped, canceled = (submit(project, spec) for _ in range(3))
        lease = claim(runner, spec)
        job_end.fail(lease_ulid=lease.lease_ulid, worker=runner, reason=FailureReason.COMMAND_FAILED)
        claim(runner, spec)
        for job in (stopped, canceled):
            cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30)
        found = {job.pk: read(mia, project, job) for job in (failed, stopped, canceled)}
        assert [found[job.pk]["status"] for job in (failed, stopped, canceled)] == ["failed", "canceled", "canceled"]
        assert None not in [body["completed"] for body in found.values()]
        assert found[canceled.pk]["runner"] is None

    def test_a_job_that_was_given_back_is_pending_again(self, mia, project, spec, runner):
        job = submit(project, spec)
        heartbeat.release(lease_ulid=claim(runner, spec).lease_ulid, worker=runner)
        body = read(mia, project, job)
        assert (body["status"], body["runner"], body["claimed"]) == ("pending", None, None)


def without_results(job):
    """The output of a lost job of which the store has none."""
    return {"results": [], "error": late_result_reason(Job.objects.get(pk=job.pk)).message}


class TestCancel:
    def test_a_member_and_the_key_of_the_project_cancel_a_job_and_nobody_else(self, mia, project, spec, runner):
        project.visibility = "public"
        project.save()
        waiting, running = submit(project, spec), submit(project, spec)
        lease = claim(runner, spec)
        stranger, key = new_person("stranger").caller, Caller(project_key(project))
        body = {"status": "canceled"}
        for caller, status in ((Caller(), 401), (stranger, 403)):
            refused(lambda caller=caller: caller.call("PATCH", path(project, running), body), status)
        for wrong in ({}, {"status": "failed"}, {"status": None}):
            refused(lambda wrong=wrong: mia.call("PATCH", path(project, running), wrong), 400, "status")
        assert lease.job_id == waiting.job_ulid
        for caller, job in ((mia, running), (key, waiting)):
            found = caller.call("PATCH", path(project, job), body)
            assert (found.status_code, found.json()["status"]) == (200, "canceled"), found.content
            assert found.json()["job_id"] == job.job_ulid == read(mia, project, job)["job_id"]
        waiting.refresh_from_db()
        assert waiting.cancel_requested_at is not None
        assert waiting.cancel_actor.startswith("client:")
        assert mia.call("PATCH", path(project, running), body).status_code == 200
        ended = submit(project, spec)
        held = claim(runner, spec)
        execute(held, runner)
        job_end.complete(lease_ulid=held.lease_ulid, worker=runner)
        late_results.settle(job_ulid=ended.job_ulid)
        refused(lambda: mia.call("PATCH", path(project, ended), body), 409)
        theirs = path(other := new_project("other"), submit(other, spec))
        refused(lambda: mia.call("PATCH", theirs, body), 404)


class TestOutput:
    @pytest.fixture
    def ended(self, project, spec, runner):
        job = submit(project, spec)
        lease = claim(runner, spec)
        job_end.fail(lease_ulid=lease.lease_ulid, worker=runner, reason=FailureReason.COMMAND_FAILED)
        return job

    def stored(self, project, job, body=None) -> None:
        name = write_output(project.uuid, uuid_of(job.job_ulid), body or encode_output(RESULTS, "exit code 1"))
        assert name is not None
        overwrite_jobs(Job.objects.filter(pk=job.pk), result=result_naming(name))

    def test_it_is_in_the_single_get_of_a_job_that_has_run(self, mia, project, ended):
        self.stored(project, ended)
        assert read(mia, project, ended)["output"] == {"results": RESULTS, "error": "exit code 1"}

    def test_the_error_is_why_the_job_failed_also_without_a_stored_output(self, mia, project, spec, runner):
        """Bencher's command line prints it; without one it says "Unknown error"."""
        unreadable, lost, canceled = (submit(project, spec) for _ in range(3))
        for _ in (unreadable, lost):
            execute(claim(runner, spec), runner)
        name = store_output(unreadable, encode_output(RESULTS))
        job_end.complete(lease_ulid=Lease.objects.get(job=unreadable).lease_ulid, worker=runner, result=name)
        process(Job.objects.get(pk=unreadable.pk))
        expiry.expire(job_ulid=lost.job_ulid, now=database_now() + timedelta(seconds=91))
        cancellation.cancel(job_ulid=canceled.job_ulid, actor=ALICE, deadline_seconds=30)
        bodies = [read(mia, project, job) for job in (unreadable, lost, canceled)]
        assert bodies[0]["output"]["results"] == RESULTS
        assert "is not in a format of the adapter" in bodies[0]["output"]["error"]
        assert bodies[1]["output"]["results"] == []
        assert "output" not in bodies[2]
        row = Job.objects.get(pk=lost.pk)
        until = f"{row.late_result_at:%Y-%m-%dT%H:%M:%SZ}"  # `/v1` says `running` until then
        assert bodies[1]["output"]["error"] == (
            f"{row.failure_message} A late result of the worker still counts until {until}. Without one the job fails."
        )
        native = Caller(api_token(project.organization)).get(f"/v1/jobs/{row.job_ulid}").json()
        reason = native["pending_reason"]
        assert (native["status"], reason["code"]) == ("running", "late_result")
        assert (reason["message"], reason["next_at"][:19]) == (bodies[1]["output"]["error"], until[:19])

    def test_the_list_never_has_it(self, mia, project, ended):
        self.stored(project, ended)
        assert "output" not in mia.get(path(project)).json()[0]

    def test_any_authenticated_caller_gets_it_and_an_anonymous_one_does_not(self, project, ended):
        project.visibility = "public"
        project.save()
        self.stored(project, ended)
        assert "output" in read(new_person("stranger").caller, project, ended)
        assert "output" in read(Caller(project_key(project)), project, ended)
        assert "output" not in read(Caller(), project, ended)

    @pytest.mark.parametrize("state", ["pending", "claimed", "running"])
    def test_a_job_that_has_not_run_has_none(self, mia, project, spec, runner, state):
        job = submit(project, spec)
        self.stored(project, job)
        if state != "pending":
            lease = claim(runner, spec)
        if state == "running":
            execute(lease, runner)
        body = read(mia, project, job)
        assert (body["status"], "output" in body) == (state, False)

    def test_an_output_that_the_result_does_not_name_is_omitted(self, mia, project, ended):
        """Its result did not count."""
        write_output(project.uuid, uuid_of(ended.job_ulid), encode_output(RESULTS))
        assert read(mia, project, ended)["output"] == without_results(ended)

    def test_a_missing_output_is_omitted_and_the_status_is_200(self, mia, project, ended):
        assert read(mia, project, ended)["output"] == without_results(ended)

    @pytest.mark.parametrize("body", [b"{", b"\xff", b"{} {}"])
    def test_an_unreadable_output_is_omitted(self, mia, project, ended, body):
        self.stored(project, ended, body)
        assert read(mia, project, ended)["output"] == without_results(ended)

    def test_a_store_that_fails_is_omitted(self, mia, project, ended, monkeypatch):
        def fail(*_):
            raise RuntimeError("no such bucket")

        monkeypatch.setattr("orchestrator.protocols.bencher.jobs.views.read_output", fail)
        assert read(mia, project, ended)["output"] == without_results(ended)

    def test_it_is_read_under_the_project_of_the_url(self, mia, project, ended):
        self.stored(new_project("other"), ended)
        assert read(mia, project, ended)["output"] == without_results(ended)

    def test_the_bytes_are_those_that_were_stored(self, mia, project, ended):
        body = encode_output(
            [{"exit_code": 0, "output": {"\0bencher": "é\ufffd", "big": "x" * 100_000}}], "exit code 1"
        )
        self.stored(project, ended, body)
        answer = mia.get(path(project, ended))
        assert answer.content.endswith(b'"output":' + body + b"}")
        assert answer["Content-Type"] == "application/json"
        assert answer["X-Total-Count"] == "1"


class TestList:
    def test_the_newest_comes_first_and_asc_is_the_reverse(self, mia, project, spec):
        jobs = [str(uuid_of(submit(project, spec).job_ulid)) for _ in range(3)]
        assert [job["uuid"] for job in mia.get(path(project)).json()] == jobs[::-1]
        assert [job["uuid"] for job in mia.get(f"{path(project)}?sort=created&direction=asc").json()] == jobs

    def test_pages_and_the_count_before_paging(self, mia, project, spec):
        jobs = [str(uuid_of(submit(project, spec).job_ulid)) for _ in range(9)][::-1]
        first = mia.get(path(project))
        assert ([job["uuid"] for job in first.json()], first["X-Total-Count"]) == (jobs[:8], "9")
        second = mia.get(f"{path(project)}?per_page=5&page=2")
        assert [job["uuid"] for job in second.json()] == jobs[5:]
        empty = mia.get(f"{path(project)}?per_page=0")
        assert (empty.json(), empty["X-Total-Count"]) == ([], "9")

    @pytest.mark.parametrize("query", ["sort=name", "direction=up", "per_page=256", "page=x", "status=done", "status="])
    def test_an_invalid_parameter_is_400(self, mia, project, query):
        refused(lambda: mia.get(f"{path(project)}?{query}"), 400, query.partition("=")[0])

    def test_unknown_parameters_are_ignored(self, mia, project):
        assert mia.get(f"{path(project)}?x=1").status_code == 200

    def test_the_status_filters(self, mia, project, spec, runner):
        jobs = {"failed": submit(project, spec), "canceled": submit(project, spec), "running": submit(project, spec)}
        job_end.fail(lease_ulid=claim(runner, spec).lease_ulid, worker=runner, reason=FailureReason.COMMAND_FAILED)
        claim(runner, spec)
        cancellation.cancel(job_ulid=jobs["canceled"].job_ulid, actor=ALICE, deadline_seconds=30)
        execute(claim(runner, spec), runner)
        jobs |= {"claimed": submit(project, spec)}
        claim(runner, spec)
        jobs |= {"pending": submit(project, spec)}
        for status in BencherStatus:
            answer = mia.get(f"{path(project)}?status={status}")
            wanted = [str(uuid_of(jobs[status].job_ulid))] if status in jobs else []
            assert [job["uuid"] for job in answer.json()] == wanted, status
            assert answer["X-Total-Count"] == str(len(wanted))

    def test_a_page_takes_the_same_queries_whatever_its_length(
        self, mia, project, spec, runner, django_assert_max_num_queries
    ):
        for _ in range(20):
            submit(project, spec)
            claim(runner, spec)
        with django_assert_max_num_queries(9):
            assert len(mia.get(f"{path(project)}?per_page=20").json()) == 20

    def test_jobs_of_other_projects_and_types_are_absent(self, mia, project, spec):
        submit(new_project("other"), spec)
        project.enabled = True
        project.save()
        steps = submitted_steps(project)
        assert mia.get(path(project)).json() == []
        refused(lambda: mia.get(path(project, steps)), 404)


STATES = [
    (state, reason, cancel)
    for state in JobState
    for reason in ((None,) if state not in {"failed", "lost"} else (FailureReason.TIMED_OUT, FailureReason.WORKER_LOST))
    for cancel in (None, "2026-01-01T00:00:00Z")
]


def test_the_filter_finds_what_the_table_of_statuses_says(project, spec):
    """Each state, with and without a cancel request, written past the rules of a row."""
    jobs = [submit(project, spec) for _ in STATES]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # PostgreSQL alters no table with pending checks
        cursor.execute("ALTER TABLE runtime_jobs DISABLE TRIGGER guard_job")
        for job, values in zip(jobs, STATES, strict=True):
            assignments = "state = %s, failure_reason = %s, cancel_requested_at = %s"
            cursor.execute(f"UPDATE runtime_jobs SET {assignments} WHERE id = %s", [*values, job.pk])
        jobs = list(Job.objects.all())
        for status in BencherStatus:
            expected = {job.pk for job in jobs if job_status(job) == status}
            assert set(Job.objects.filter(with_status(status)).values_list("pk", flat=True)) == expected, status
            assert expected, f"no state is {status}"
        transaction.set_rollback(True)


class TestPermission:
    def test_an_anonymous_caller_reads_a_public_project(self, project, spec):
        job = submit(project, spec)
        project.visibility = "public"
        project.save()
        assert Caller().get(path(project)).status_code == 200
        answer = Caller().get(path(project, job))
        assert (answer.status_code, answer["Access-Control-Allow-Headers"]) == (200, "Content-Type")

    def test_a_private_project_is_404_for_others_with_a_hint_for_anonymous_ones(self, project, spec):
        job = submit(project, spec)
        stranger = new_person("stranger").caller
        for target in (path(project), path(project, job)):
            assert "Authenticate" in refused(lambda target=target: Caller().get(target), 404)
            assert "Authenticate" not in refused(lambda target=target: stranger.get(target), 404)

    def test_a_missing_project_is_answered_like_a_private_one(self, project, mia):
        stranger = new_person("stranger").caller
        private = refused(lambda: stranger.get(path(project)), 404)
        missing = refused(lambda: mia.get("/v0/projects/nowhere/jobs"), 404)
        assert private.replace(project.public_slug, "nowhere") == missing

    def test_the_key_of_another_project_is_403_on_a_public_and_404_on_a_private_project(self, project):
        caller = Caller(project_key(new_project("other")))
        refused(lambda: caller.get(path(project)), 404)
        project.visibility = "public"
        project.save()
        refused(lambda: caller.get(path(project)), 403)

    def test_its_own_key_and_staff_read_a_private_project(self, project):
        for caller in (Caller(project_key(project)), new_person("olga", is_staff=True).caller):
            assert caller.get(path(project)).status_code == 200

    @pytest.mark.parametrize("token", ["bencher_run_" + "x" * 30, "bencher_user_" + "x" * 30, "x.y.z", ""])
    def test_an_invalid_credential_is_401_also_on_a_public_project(self, project, token):
        project.visibility = "public"
        project.save()
        caller = Caller()
        caller.headers = {"Authorization": f"Bearer {token}"}
        refused(lambda: caller.get(path(project)), 401)


class TestPath:
    def test_the_uuid_names_the_project_too(self, mia, project):
        assert mia.get(f"/v0/projects/{project.uuid}/jobs").status_code == 200
        assert mia.get(f"/v0/projects/{str(project.uuid).upper()}/jobs").status_code == 200

    def test_a_project_that_is_neither_uuid_nor_slug_is_400(self, mia):
        refused(lambda: mia.get("/v0/projects/No--Slug/jobs"), 400, "project")

    def test_a_job_that_is_no_uuid_is_400_and_an_absent_one_404(self, mia, project):
        refused(lambda: mia.get(f"{path(project)}/rtj_x"), 400, "job")
        refused(lambda: mia.get(f"{path(project)}/{uuid4()}"), 404)
        refused(lambda: mia.get(f"{path(project)}/00000000-0000-0000-0000-000000000099"), 404)

    def test_a_job_of_another_project_is_404(self, mia, project, spec):
        other = path(project, submit(new_project("other"), spec))
        refused(lambda: mia.get(other), 404)

    def test_other_methods_are_405(self, mia, project):
        refused(lambda: mia.post(path(project)), 405)
        assert mia.call("OPTIONS", path(project))["Access-Control-Allow-Methods"] == "GET, OPTIONS"


def test_times_have_whole_seconds_in_utc(mia, project, spec):
    job = submit(project, spec)
    body = read(mia, project, job)
    assert body["created"] == (job.created_at + timedelta(0)).strftime("%Y-%m-%dT%H:%M:%SZ")
