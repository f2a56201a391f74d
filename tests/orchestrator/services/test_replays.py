"""A replay has the input of the job that it repeats, and its verdict compares what both have produced."""

import json
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import connection

from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.core.row_batches import RowRunner
from orchestrator.evidence import replay_tasks as maintenance
from orchestrator.evidence import replays
from orchestrator.evidence.replay_comparison import confirm_record
from orchestrator.evidence.replay_models import Replay
from orchestrator.evidence.replay_reads import replay_record
from orchestrator.evidence.replay_tasks import compare_ended_replays
from orchestrator.evidence.replays import ReplayRequest
from orchestrator.incidents.models import Incident
from orchestrator.incidents.operations import resolve_incident
from orchestrator.services import cancellation, job_end, retries
from orchestrator.services.submission import submit
from orchestrator.step_logs import job_log_writes
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import (
    IdempotencyConflict,
    InvalidDependency,
    NotFinal,
    NotFound,
    NotReplayable,
    PriorityForbidden,
    ProjectNotEnabled,
    QueueFull,
    StoredInputMismatch,
)
from runtime_jobs.models import Dependency, Job, JobEvent, LogChunk, OperatorEvent, StoredArtifact
from runtime_jobs.specs import JOB_TYPES, Cache, PayloadSpec
from runtime_jobs.specs.manifests import NETWORK, UNTRACED
from runtime_jobs.states import FailureReason
from tests.factories import (
    ALICE,
    COMMIT,
    OPERATOR,
    TIMINGS,
    OrganizationFactory,
    PlanFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    source,
    submission,
    submitted,
    submitted_steps,
)
from tests.tampering import tamper

pytestmark = pytest.mark.django_db
FILE = {"type": "file", "path": "out/report.txt", "size_bytes": 3, "sha256": "a" * 64, "stored": True}


@pytest.fixture
def worker():
    return WorkerFactory()


def execute(worker, *, exit_code=0, log=b"", **result) -> Job:
    """Execute the next job of type `steps`, which must be there."""
    found = claimed(worker, job_types=("steps",))
    lease = found.lease.lease_ulid
    if log:
        job_log_writes.append_log(lease_ulid=lease, worker=worker, seq=0, chunk=log)
    result = {"steps": [{"index": 0, "exit_code": exit_code}]} | result
    if exit_code:
        reason = FailureReason.COMMAND_FAILED
        return job_end.fail(lease_ulid=lease, worker=worker, reason=reason, exit_code=exit_code, result=result)
    return job_end.complete(lease_ulid=lease, worker=worker, exit_code=0, result=result)


def executed(worker, *, project=None, outcome=None, **spec) -> Job:
    submitted_steps(project, **spec)
    return execute(worker, **(outcome or {}))


def replayed(job: Job, **changes) -> Job:
    values = {"root_ulid": job.root_job_ulid, "reason": "audit", "actor": ALICE}
    return replays.replay(ReplayRequest(**values | changes)).job


def verdict_of(job: Job, **options) -> Replay:
    compare_ended_replays(RowRunner(), **options)
    return Replay.objects.get(job_ulid=job.root_job_ulid)


def change_input(changes: str, job: Job, *values) -> None:
    """Change an ended job as an owner of the database can, past all triggers."""
    tamper("runtime_jobs", f"UPDATE runtime_jobs SET {changes} WHERE job_ulid = %s", [*values, job.job_ulid])


class TestTheNewJob:
    def test_it_has_the_input_of_the_original_and_a_root_of_its_own(self, worker):
        job = executed(worker, environment={"A": "1"}, source=source())
        job.refresh_from_db()
        again = replayed(job)
        again.refresh_from_db()
        assert (again.replay_of_job_ulid, again.root_job_ulid, again.attempt) == (job.job_ulid, again.job_ulid, 1)
        assert again.job_ulid != job.job_ulid
        same = ("org_slug", "project_slug", "job_type", "spec", "payload_digest", "git_commit", "timeout_seconds")
        for name in (*same, "correlation_id", "pool", "priority", "lease_ttl_seconds", "requirements"):
            assert getattr(again, name) == getattr(job, name), name
        assert again.git_commit == COMMIT
        assert (again.state, again.trigger_actor, again.result, again.batch_id) == ("queued", "alice", None, None)
        assert run_audit(chains=True) == []

    def test_its_history_begins_with_job_replayed(self, worker):
        job = executed(worker)
        again = replayed(job, is_sealed=True)
        first, second = JobEvent.objects.of(again.job_ulid)
        assert (first.event_type, first.seq, first.to_state) == ("job.replayed", 1, None)
        assert (second.event_type, second.seq, second.to_state) == ("job.queued", 2, "queued")
        facts = {name: first.payload_json[name] for name in ("replay_of", "replayed_attempt", "reason", "sealed")}
        assert facts == {"replay_of": job.job_ulid, "replayed_attempt": 1, "reason": "audit", "sealed": True}
        assert first.payload_json["payload_digest"] == job.payload_digest  # the first event binds the input

    def test_any_number_of_replays_of_a_job_and_of_a_replay(self, worker):
        job = executed(worker)
        for _ in range(3):
            replayed(job)
        assert Job.objects.filter(replay_of_job_ulid=job.job_ulid).count() == 3
        again = execute(worker)
        assert replayed(again).replay_of_job_ulid == again.job_ulid

    def test_of_several_attempts_the_newest_one_is_repeated(self, worker):
        first = executed(worker, outcome={"exit_code": 7})
        retries.retry(job_ulid=first.job_ulid, actor=ALICE, reason="again")
        second = execute(worker)
        row = Replay.objects.get(job_ulid=replayed(first).job_ulid)
        assert (row.replay_of_ulid, row.attempt_ulid) == (first.job_ulid, second.job_ulid)
        assert row.expected["outputs"]["exitCode"] == 0

    def test_a_retry_of_a_replay_still_repeats_the_job(self, worker):
        job = executed(worker)
        again = replayed(job)
        found = claimed(worker, job_types=("steps",))
        job_end.fail(lease_ulid=found.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_SHUTDOWN)
        retry = Job.objects.get(retry_of_job_ulid=again.job_ulid)
        assert retry.replay_of_job_ulid == job.job_ulid
        assert verdict_of(again).verdict is None  # the newest attempt has not ended
        execute(worker)
        assert verdict_of(again).verdict == "match"
        assert run_audit(chains=True) == []

    def test_a_key_returns_the_first_replay(self, worker):
        job = executed(worker)

        def send(fingerprint):
            key = IdempotentRequest("token:1", f"replay {job.job_ulid}", "k", fingerprint)
            request = ReplayRequest(job.job_ulid, "audit", ALICE)
            return replays.replay(request, idempotency=key)

        first, second = send("a"), send("a")
        assert (first.replayed, second.replayed) == (False, True)
        assert first.job.job_ulid == second.job.job_ulid
        with pytest.raises(IdempotencyConflict):
            send("b")
        assert Replay.objects.count() == 1


class TestRefusals:
    def refused(self, error, job, **changes):
        rows = Job.objects.count(), JobEvent.objects.count(), Replay.objects.count()
        with pytest.raises(error) as caught:
            replayed(job, **changes)
        assert (Job.objects.count(), JobEvent.objects.count(), Replay.objects.count()) == rows
        return caught.value

    def test_a_job_that_does_not_exist(self):
        self.refused(NotFound, SimpleNamespace(root_job_ulid="rtj_01j00000000000000000000002"))

    def test_a_job_that_has_not_ended(self, worker):
        job = submitted_steps()
        self.refused(NotFinal, job)
        claimed(worker, job_types=("steps",))
        self.refused(NotFinal, job)

    def test_a_job_with_an_open_attempt(self, worker):
        job = executed(worker, outcome={"exit_code": 7})
        retries.retry(job_ulid=job.job_ulid, actor=ALICE, reason="again")
        self.refused(NotFinal, job)

    def test_a_changed_input(self, worker):
        job = executed(worker)
        change_input("spec = jsonb_set(spec, '{steps}', '[\"rm -rf /\"]')", job)
        assert self.refused(StoredInputMismatch, job).code == "digest_mismatch"

    def test_a_changed_input_with_its_digest(self, worker):
        job, other = executed(worker), submitted_steps(steps=("rm -rf /",))
        change_input(
            "spec = jsonb_set(spec, '{steps}', '[\"rm -rf /\"]'), payload_digest = %s", job, other.payload_digest
        )
        job.refresh_from_db()
        assert JOB_TYPES["steps"].from_job(job).digest == job.payload_digest
        self.refused(StoredInputMismatch, job)  # the first event binds the digest

    def test_changed_cursors(self, worker):
        project = ProjectFactory()
        spec = PayloadSpec(job_type="scan", payload={"image": "a"}, timeout_seconds=60, cursors={"advisory": "first"})
        submit(
            submission(project, spec),
            policy=JOB_TYPES["scan"].policy(**TIMINGS),
            default_pool="shared-linux",
            actor=ALICE,
        )
        lease = claimed(worker, job_types=("scan",)).lease.lease_ulid
        job = job_end.complete(lease_ulid=lease, worker=worker, exit_code=0)
        change_input("spec = jsonb_set(spec, '{cursors}', '{\"advisory\": \"later\"}')", job)
        self.refused(StoredInputMismatch, job)

    def test_an_input_that_is_none(self, worker):
        job = executed(worker)
        change_input("spec = '{}'", job)
        self.refused(StoredInputMismatch, job)

    @pytest.mark.parametrize("state", ["sealed", "open"])
    def test_sealed_nothing_may_be_open(self, worker, state):
        job = executed(worker, allow_network=True)
        if state == "sealed":
            refusal = self.refused(NotReplayable, job, is_sealed=True)
            assert (refusal.code, refusal.facts) == ("not_replayable", {"reasons": [NETWORK]})
        else:
            assert Replay.objects.get(job_ulid=replayed(job).job_ulid).caveats == [NETWORK]

    @pytest.mark.parametrize("spec", [{"image": "alpine:3"}, {"caches": True}])
    def test_an_image_by_tag_and_caches_are_not_fixed(self, worker, spec):
        if spec.get("caches"):
            spec = {"caches": (Cache("npm", "npm", ("node_modules",)),)}
        worker.capabilities = [*worker.capabilities, "image"]
        worker.save(update_fields=["capabilities"])
        job = submitted_steps(**spec)
        cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=60)
        self.refused(NotReplayable, job, is_sealed=True)

    def test_todays_rules_count(self, worker):
        job = executed(worker)
        project = ProjectFactory(organization__slug=job.org_slug, slug=job.project_slug)
        self.refused(PriorityForbidden, job, priority=250)
        project.enabled = False
        project.save(update_fields=["enabled"])
        self.refused(ProjectNotEnabled, job)

    def test_a_client_uses_its_submit_quota_and_an_operator_does_not(self, worker):
        plan = PlanFactory(name="tiny", max_queued=1)
        project = ProjectFactory(organization=OrganizationFactory(plan=plan))
        job = executed(worker, project=project)
        replayed(job)
        self.refused(QueueFull, job)
        replayed(job, actor=OPERATOR)


class TestOrder:
    def test_each_waits_for_the_end_of_the_one_before_however_it_ends(self, worker):
        project = ProjectFactory()
        first, second = executed(worker, project=project, outcome={"exit_code": 7}), executed(worker, project=project)
        one = replayed(first)
        two = replayed(second, after_ulid=one.job_ulid)
        assert (one.state, two.state) == ("queued", "blocked")
        assert not Dependency.objects.get().needs_success
        execute(worker, exit_code=7)
        assert Job.objects.get(pk=two.pk).state == "queued"
        execute(worker)
        assert [verdict_of(job).verdict for job in (one, two)] == ["match", "match"]
        assert run_audit(chains=True) == []

    def test_a_retry_of_a_replay_does_not_need_the_success_of_the_one_before(self, worker):
        project, failure = ProjectFactory(), {"exit_code": 7}
        first, second = (executed(worker, project=project, outcome=failure) for _ in range(2))
        one = replayed(first)
        two = replayed(second, after_ulid=one.job_ulid)
        for _ in range(2):
            execute(worker, exit_code=7)
        assert retries.retry(job_ulid=two.job_ulid, actor=ALICE, reason="again").job.state == "queued"

    def test_the_one_before_is_of_the_organization(self, worker):
        job, foreign = executed(worker), submitted_steps(ProjectFactory(organization__slug="intruder"))
        with pytest.raises(InvalidDependency):
            replayed(job, after_ulid=foreign.job_ulid)


class TestVerdicts:
    def test_equal_outputs_match(self, worker):
        job = executed(worker, outcome={"outputs": {"findings": 3}, "files": [FILE], "log": b"at 12:00"})
        again = replayed(job, is_sealed=True)
        execute(worker, outputs={"findings": 3}, files=[FILE], log=b"at 12:01")
        row = verdict_of(again)
        assert (row.verdict, row.difference, row.reasons) == ("match", None, [])
        assert [note["path"] for note in row.notes] == ["/logs/digest"]  # reported, and decides nothing
        event = OperatorEvent.objects.get(action="replay.matched")
        assert (event.target, event.actor, event.org_slug) == (f"job:{again.job_ulid}", "clock:clock", job.org_slug)
        facts = {"job_id": again.job_ulid, "replay_of": job.job_ulid, "verdict": "match", "sealed": True, "reasons": []}
        assert event.after == facts
        assert not Incident.objects.exists()
        assert JobEvent.objects.filter(job=again).latest("seq").event_type == "job.completed"  # closed at its end
        assert run_audit(chains=True) == []

    def test_another_artifact_diverges_and_opens_an_incident(self, worker):
        job = executed(worker, outcome={"files": [FILE]})
        again = replayed(job)
        execute(worker, files=[FILE | {"sha256": "b" * 64}])
        row = verdict_of(again)
        path = "/outputs/artifacts/out~1report.txt/digest"
        expected = {"path": path, "expected": "sha256:" + "a" * 64, "found": "sha256:" + "b" * 64}
        assert (row.verdict, row.difference) == ("diverged", expected)
        incident = Incident.objects.get()
        assert (incident.kind, incident.job_ulid, incident.status) == ("replay", again.job_ulid, "open")
        assert path in incident.summary
        assert OperatorEvent.objects.get(action="replay.diverged").after["difference"] == expected
        record = json.loads(json.dumps(replay_record(Replay.objects.get())))
        assert confirm_record(record).verdict == "diverged"  # as a reader of the audit bundle does
        resolve_incident(incident_ulid=incident.incident_ulid, cause=Cause(ALICE, "the clock was read"))
        assert run_audit(chains=True) == []

    def test_another_exit_code_diverges(self, worker):
        again = replayed(executed(worker))
        execute(worker, exit_code=1)
        assert verdict_of(again).verdict == "diverged"

    def test_an_equal_failure_matches(self, worker):
        again = replayed(executed(worker, outcome={"exit_code": 7}))
        execute(worker, exit_code=7)
        assert verdict_of(again).verdict == "match"

    def test_with_network_it_runs_and_verifies_nothing(self, worker):
        again = replayed(executed(worker, allow_network=True))
        execute(worker)
        row = verdict_of(again)
        assert (row.verdict, row.reasons) == ("unverifiable", [NETWORK])
        assert OperatorEvent.objects.get(action="replay.unverifiable").after["reasons"] == [NETWORK]
        assert not Incident.objects.exists()

    def test_a_canceled_replay_verifies_nothing(self, worker):
        again = replayed(executed(worker))
        cancellation.cancel(job_ulid=again.job_ulid, actor=ALICE, deadline_seconds=60)
        row = verdict_of(again)
        assert (row.verdict, row.reasons) == ("unverifiable", ["Of the replay: It was canceled."])

    def test_the_expected_outputs_are_those_at_the_request(self, worker):
        """The artifacts of the job may expire before the replay ends."""
        submitted_steps()
        found = claimed(worker, job_types=("steps",))
        project = ProjectFactory(organization__slug=found.job.org_slug, slug=found.job.project_slug)
        now = database_now()
        kept = {"organization": project.organization, "project": project, "byte_count": 1, "sha256": "c" * 64}
        kept |= {"created_at": now, "upload_until": now, "completed_at": now}
        StoredArtifact.objects.create(job=found.job, name="a", object_key="1", **kept)
        job = job_end.complete(lease_ulid=found.lease.lease_ulid, worker=worker, exit_code=0, result={})
        again = replayed(job)
        StoredArtifact.objects.all().delete()
        found = claimed(worker, job_types=("steps",))
        StoredArtifact.objects.create(job=found.job, name="a", object_key="2", **kept)
        job_end.complete(lease_ulid=found.lease.lease_ulid, worker=worker, exit_code=0, result={})
        assert verdict_of(again).verdict == "match"

    def test_a_verdict_is_given_once_and_not_before_the_end(self, worker):
        again = replayed(executed(worker))
        assert replays.compare_replay(job_ulid=again.job_ulid) is None
        assert verdict_of(again).verdict is None
        execute(worker, exit_code=1)
        later = database_now() + timedelta(hours=1)
        assert verdict_of(again, now=later).decided_at == later
        assert replays.compare_replay(job_ulid=again.job_ulid) is None
        assert Incident.objects.count() == OperatorEvent.objects.filter(action="replay.diverged").count() == 1

    def test_a_log_that_is_not_in_the_database_has_no_digest(self, worker):
        job = executed(worker, outcome={"log": b"abc"})
        LogChunk.objects.all().delete()
        row = Replay.objects.get(job_ulid=replayed(job).job_ulid)
        assert row.expected["logs"] == {"bytes": 3, "digest": None}

    def test_one_replay_that_fails_does_not_stop_the_others(self, worker, monkeypatch):
        rows = RowRunner()
        job = executed(worker)
        first, second = replayed(job), replayed(job)
        for _ in range(2):
            execute(worker)
        compare = replays.compare_replay

        def failing(*, job_ulid, now):
            if job_ulid == first.job_ulid:
                raise ValueError("broken")
            return compare(job_ulid=job_ulid, now=now)

        monkeypatch.setattr(replays, "compare_replay", failing)
        monkeypatch.setattr(maintenance, "SECONDS_A_ROUND", 60)  # the first one may be slow
        assert compare_ended_replays(rows) == 1
        assert Replay.objects.get(job_ulid=second.job_ulid).verdict == "match"
        assert rows.failed_rows == 1

    def test_a_round_compares_as_many_as_it_has_time_for(self, worker, monkeypatch):
        job = executed(worker)
        for _ in range(3):
            replayed(job)
            execute(worker)
        monkeypatch.setattr(maintenance, "SECONDS_A_ROUND", 0)
        assert [compare_ended_replays(RowRunner()) for _ in range(4)] == [1, 1, 1, 0]
        monkeypatch.setattr(maintenance, "SECONDS_A_ROUND", 60)
        assert compare_ended_replays(RowRunner()) == 0


class TestRuntime:
    def test_a_job_with_network_is_refused_sealed(self, worker):
        submitted()
        found = claimed(worker)
        cancellation.cancel(job_ulid=found.job.job_ulid, actor=ALICE, deadline_seconds=60)
        job = job_end.acknowledge_cancel(lease_ulid=found.lease.lease_ulid, worker=worker)
        with pytest.raises(NotReplayable):
            replayed(job, is_sealed=True)
        assert replayed(job).command_json == job.command_json

    def test_a_job_whose_files_were_not_recorded_is_refused_sealed(self, worker):
        for level in ("full", "network", "none"):
            job = submitted(allow_network=False, trace=level)
            found = claimed(worker)
            cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=60)
            job_end.acknowledge_cancel(lease_ulid=found.lease.lease_ulid, worker=worker)
            if level == "full":
                assert replayed(job, is_sealed=True).trace == "full"
                claimed(worker)
                continue
            with pytest.raises(NotReplayable) as refused:
                replayed(job, is_sealed=True)
            assert refused.value.facts["reasons"] == [f"{UNTRACED} {level}."]


class TestAudit:
    def test_each_invariant_finds_its_rows(self, worker):
        job = executed(worker)
        again = replayed(job)
        assert run_audit() == []
        Replay.objects.update(replay_of_ulid=again.job_ulid)
        assert {finding.code for finding in run_audit()} == {"R1"}
        Replay.objects.update(replay_of_ulid=job.job_ulid)
        now = database_now()
        Replay.objects.update(verdict="match", found={}, decided_at=now)
        assert {finding.code for finding in run_audit()} == {"R3"}
        Incident.objects.create(
            kind="replay", org_slug=job.org_slug, job_type="steps", job_ulid=again.job_ulid, summary="x", opened_at=now
        )
        assert {finding.code for finding in run_audit()} == {"R3", "R4"}
        Replay.objects.all().delete()
        assert {finding.code for finding in run_audit()} == {"R1", "R2", "R4"}


@pytest.mark.django_db(transaction=True)
def test_one_of_two_schedulers_gives_the_verdict(worker):
    again = replayed(executed(worker))
    execute(worker, exit_code=1)
    barrier, found = threading.Barrier(2), []

    def compare():
        try:
            barrier.wait(10)
            found.append(replays.compare_replay(job_ulid=again.job_ulid))
        finally:
            connection.close()

    threads = [threading.Thread(target=compare) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(row is None for row in found) == [False, True]
    assert Incident.objects.count() == 1
