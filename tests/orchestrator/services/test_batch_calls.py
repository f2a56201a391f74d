"""Batch operations: each job is judged as alone, a refusal leaves nothing, and no statement is sent per job."""

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from leases.errors import StaleLease
from leases.models import Lease
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.services import batch_calls, bulk_submit, cancellation, claiming, heartbeat, job_end
from orchestrator.services.heartbeat import HeartbeatUpdate
from orchestrator.services.job_end import CompleteMessage, FailMessage
from runtime_jobs.errors import (
    Conflict,
    IdempotencyConflict,
    Invalid,
    InvalidDependency,
    InvalidTransition,
    LifecycleError,
    ProjectNotEnabled,
)
from runtime_jobs.models import Dependency, EndedDependency, FailureExplanation, Job, JobEvent, UnsentRun
from runtime_jobs.specs import configured_policy
from runtime_jobs.states import FailureReason, JobState
from tests.factories import (
    ALICE,
    ProjectFactory,
    WorkerFactory,
    offer,
    spec,
    steps_spec,
    submission,
    submitted,
    submitted_steps,
)
from tests.orchestrator.services.conftest import after
from tests.orchestrator.services.test_races import together

pytestmark = pytest.mark.django_db
BOTH = ("runtime", "steps")


@pytest.fixture
def project(db):
    return ProjectFactory()


@pytest.fixture
def worker(db):
    return WorkerFactory(capacity=200)


def claim_many(worker, most, *, job_types=("runtime",), **kwargs):
    kwargs.setdefault("acknowledge", True)
    return claiming.claim_many(worker=worker, offer=offer(worker, job_types=job_types), limit=most, **kwargs)


def held(worker, project, number, **kwargs):
    """So many leases of this worker, by their ids."""
    for _ in range(number):
        submitted(project)
    return [one.lease.lease_ulid for one in claim_many(worker, number, **kwargs)]


def key(name="k", fingerprint="f"):
    return IdempotentRequest("wrk", "claim", name, fingerprint)


def job_of(lease_ulid) -> Job:
    return Lease.objects.select_related("job").get(lease_ulid=lease_ulid).job


def kinds(lease_ulid) -> list[str]:
    return list(JobEvent.objects.of(job_of(lease_ulid).job_ulid).values_list("event_type", flat=True))


# --- claims -----------------------------------------------------------------------------------------------------------


def test_a_claim_of_many_takes_the_oldest_in_their_order(project, worker):
    jobs = [submitted(project).job_ulid for _ in range(5)]
    claims = claim_many(worker, 3)
    assert [one.job.job_ulid for one in claims] == jobs[:3]
    assert len({one.lease.lease_ulid for one in claims}) == 3
    assert {job_of(one.lease.lease_ulid).state for one in claims} == {JobState.LEASED}
    assert [one.job.job_ulid for one in claim_many(worker, 3)] == jobs[3:]
    assert claim_many(worker, 3) == []


def test_it_takes_no_more_than_the_worker_can_hold(project):
    worker = WorkerFactory(capacity=3)
    for _ in range(5):
        submitted(project)
    assert len(claim_many(worker, 2)) == 2
    assert len(claim_many(worker, 64)) == 1
    assert claim_many(worker, 64) == []


def test_the_same_claim_again_returns_the_leases_that_are_open(project, worker):
    for _ in range(4):
        submitted(project)
    first = claim_many(worker, 3, idempotency=key())
    again = claim_many(worker, 3, idempotency=key())
    assert [one.lease.lease_ulid for one in again] == [one.lease.lease_ulid for one in first]
    assert all(one.replayed for one in again)
    job_end.complete(lease_ulid=first[0].lease.lease_ulid, worker=worker, ingest_run_id="run_1")
    assert [one.job.pk for one in claim_many(worker, 3, idempotency=key())] == [one.job.pk for one in first[1:]]
    for one in first[1:]:
        heartbeat.release(lease_ulid=one.lease.lease_ulid, worker=worker)
    assert len(claim_many(worker, 3, idempotency=key())) == 3, "a key whose leases have ended counts no more"


# --- what a holder says -----------------------------------------------------------------------------------------------


def test_many_are_acknowledged_renewed_and_completed(project, worker):
    leases = held(worker, project, 3)
    assert {
        job.state
        for job in batch_calls.acknowledge_many(batch_calls.messages_of(worker, dict.fromkeys(leases))).values()
    } == {JobState.STARTING}
    beats = {name: HeartbeatUpdate(phase="executing", progress={"percent": 1.0}) for name in leases}
    renewed = batch_calls.renew_many(batch_calls.messages_of(worker, beats))
    assert [one.lease.lease_ulid for one in renewed.values()] == leases
    assert job_of(leases[0]).progress == {"percent": 1.0}
    runs = {name: CompleteMessage(f"run_{place}") for place, name in enumerate(leases)}
    assert {ended.job.state for ended in batch_calls.complete_many(batch_calls.messages_of(worker, runs)).values()} == {
        JobState.SUCCEEDED
    }
    assert [job_of(name).ingest_run_id for name in leases] == ["run_0", "run_1", "run_2"]
    assert kinds(leases[2]) == ["job.queued", "job.leased", "job.started", "job.progress", "job.completed"]


def test_one_that_is_refused_spoils_no_other_and_leaves_nothing(project, worker):
    ahead, granted, gone, fine = held(worker, project, 4)
    other = held(WorkerFactory(), project, 1)[0]
    heartbeat.report(lease_ulid=ahead, worker=worker, phase="uploading")
    heartbeat.release(lease_ulid=gone, worker=worker)
    before = {name: (kinds(name), vars(Lease.objects.get(lease_ulid=name))) for name in (ahead, granted, gone, other)}
    beats = dict.fromkeys(
        [ahead, gone, other, "rtl_none", fine], HeartbeatUpdate(phase="executing", progress={"percent": 2.0})
    )
    answers = batch_calls.renew_many(batch_calls.messages_of(worker, beats))
    assert [type(answer) for answer in answers.values()] == [
        InvalidTransition, StaleLease, StaleLease, StaleLease, heartbeat.HeartbeatResult,
    ]  # fmt: skip
    assert [answers[name].facts["reason"] for name in (gone, other, "rtl_none")] == [
        "lease_ended", "unknown_lease", "unknown_lease",
    ]  # fmt: skip
    assert job_of(ahead).progress is None
    for name, (result, row) in before.items():
        now = vars(Lease.objects.get(lease_ulid=name))
        assert kinds(name) == result
        assert {field: value for field, value in now.items() if field != "_state"} == {
            field: value for field, value in row.items() if field != "_state"
        }


def test_a_refusal_takes_back_the_acknowledgement_that_it_implied(project, worker):
    """An unknown phase is refused after the lease was extended."""
    granted, fine = held(worker, project, 2)
    answers = batch_calls.complete_many(
        batch_calls.messages_of(worker, {granted: CompleteMessage(None), fine: CompleteMessage("run_1")})
    )
    assert isinstance(answers[granted], Invalid)
    wrong_way = batch_calls.renew_many(batch_calls.messages_of(worker, {granted: HeartbeatUpdate(phase="nowhere")}))
    assert isinstance(wrong_way[granted], InvalidTransition)
    lease = Lease.objects.get(lease_ulid=granted)
    assert (lease.state, lease.acknowledged_at, lease.job.state) == ("granted", None, JobState.LEASED)
    assert kinds(granted) == ["job.queued", "job.leased"]


def test_of_two_leases_on_one_job_neither_sees_what_was_taken_back(project, worker):
    done, old = held(worker, project, 2)
    job_end.complete(lease_ulid=done, worker=worker, ingest_run_id="run_0")
    heartbeat.release(lease_ulid=old, worker=worker)
    (new,) = [one.lease.lease_ulid for one in claim_many(worker, 1)]
    answers = batch_calls.complete_many(
        batch_calls.messages_of(worker, {new: CompleteMessage("run_0"), old: CompleteMessage("run_1")})
    )
    assert isinstance(answers[new], Conflict), "the run is another job's, which is seen after the lease was heard"
    assert isinstance(answers[old], Conflict)
    assert answers[old].facts["job_status"] == "queued", "not running: the acknowledgement was taken back"


def test_at_its_expiry_a_lease_is_dead_for_this_call_too(project, worker):
    leases = held(worker, project, 2, acknowledge=False)
    ends = Lease.objects.get(lease_ulid=leases[0]).expires_at
    answers = batch_calls.renew_many(
        batch_calls.messages_of(worker, dict.fromkeys(leases, HeartbeatUpdate())), now=ends
    )
    assert {answer.facts["reason"] for answer in answers.values()} == {"lease_expired"}
    fine = batch_calls.renew_many(
        batch_calls.messages_of(worker, dict.fromkeys(leases, HeartbeatUpdate())), now=ends - timedelta(seconds=1)
    )
    assert all(one.lease.expires_at > ends for one in fine.values())


def test_the_same_final_messages_again_are_answered_the_same_and_others_are_conflicts(project, worker):
    leases = held(worker, project, 2)
    runs = {leases[0]: CompleteMessage("run_0"), leases[1]: CompleteMessage("run_1")}
    first = batch_calls.complete_many(batch_calls.messages_of(worker, runs))
    result = [kinds(name) for name in leases]
    again = batch_calls.complete_many(
        batch_calls.messages_of(worker, runs), now=after(first[leases[0]].job.finished_at, 4000)
    )
    assert {ended.job.state for ended in again.values()} == {JobState.SUCCEEDED}
    other = batch_calls.complete_many(
        batch_calls.messages_of(worker, {leases[0]: CompleteMessage("run_2"), leases[1]: CompleteMessage("run_1")})
    )
    assert isinstance(other[leases[0]], Conflict)
    assert not isinstance(other[leases[1]], LifecycleError)
    failed = batch_calls.fail_many(
        batch_calls.messages_of(worker, {leases[0]: FailMessage(FailureReason.WORKER_ERROR)})
    )
    assert isinstance(failed[leases[0]], Conflict)
    assert [kinds(name) for name in leases] == result


def test_one_run_is_one_jobs_also_within_a_call(project, worker):
    leases = held(worker, project, 3)
    job_end.complete(lease_ulid=leases[0], worker=worker, ingest_run_id="run_0")
    runs = {leases[1]: CompleteMessage("run_0"), leases[2]: CompleteMessage("run_1")}
    answers = batch_calls.complete_many(batch_calls.messages_of(worker, runs))
    assert isinstance(answers[leases[1]], Conflict)
    more = held(worker, project, 2)
    answers = batch_calls.complete_many(batch_calls.messages_of(worker, dict.fromkeys(more, CompleteMessage("run_2"))))
    assert answers[more[0]].job.state == JobState.SUCCEEDED
    assert isinstance(answers[more[1]], Conflict)


def test_failures_bring_their_retries_their_runs_and_their_explanations(project, worker):
    lost, unsent = held(worker, project, 2)
    submitted_steps(project)
    (steps,) = [one.lease.lease_ulid for one in claim_many(worker, 9, job_types=("steps",))]
    words = {
        lost: FailMessage(FailureReason.WORKER_SHUTDOWN),
        unsent: FailMessage(FailureReason.UPLOAD_FAILED, unsent_run={"a": 1}),
        steps: FailMessage(FailureReason.COMMAND_FAILED, message="tests failed", exit_code=1),
    }
    answers = batch_calls.fail_many(batch_calls.messages_of(worker, words))
    assert {ended.job.state for ended in answers.values()} == {JobState.FAILED}
    retry = Job.objects.get(retry_of_job_ulid=answers[lost].job.job_ulid)
    assert (retry.state, retry.attempt, retry.lane_id) == (JobState.QUEUED, 2, answers[lost].job.lane_id)
    assert UnsentRun.objects.get().job_id == answers[unsent].job.job_ulid
    assert FailureExplanation.objects.get().job_id == answers[steps].job.job_ulid
    assert [one.job.pk for one in claim_many(worker, 9, job_types=BOTH)] == [retry.pk]


def test_a_cancel_that_was_asked_for_counts_here_too(project, worker):
    asked, free = held(worker, project, 2, acknowledge=False)
    cancellation.cancel(job_ulid=job_of(asked).job_ulid, actor=ALICE, deadline_seconds=30)
    answers = batch_calls.fail_many(
        batch_calls.messages_of(worker, dict.fromkeys([asked, free], FailMessage(FailureReason.WORKER_SHUTDOWN)))
    )
    assert [answers[name].job.state for name in (asked, free)] == [JobState.CANCELED, JobState.FAILED]


def test_those_that_wait_for_the_ended_ones_go_on(project, worker):
    first, second = submitted(project), submitted(project)
    last = submitted(project, depends_on=(first, second))
    claims = claim_many(worker, 2)
    words = {one.lease.lease_ulid: CompleteMessage(f"run_{one.job.pk}") for one in claims}
    batch_calls.complete_many(batch_calls.messages_of(worker, words))
    assert Job.objects.get(pk=last.pk).state == JobState.QUEUED
    assert not EndedDependency.objects.exists()


# --- submission -------------------------------------------------------------------------------------------------------


def submit_many(entries, **kwargs):
    return bulk_submit.submit_many(
        entries, policy_for=configured_policy, default_pool="shared-linux", actor=ALICE, **kwargs
    )


def test_each_entry_has_its_own_result(project, worker):
    stranger = ProjectFactory(enabled=False)
    entries = [
        submission(project, spec()),
        Invalid({"x": ["wrong"]}),
        submission(stranger, spec()),
        submission(project, steps_spec()),
        submission(project, spec(), depends_on=("rtj_01kkygkagq0jk17bx6y1w8c3df",)),
    ]
    results = submit_many(entries).results
    assert [type(one) for one in results] == [Job, Invalid, ProjectNotEnabled, Job, InvalidDependency]
    assert Job.objects.count() == 2
    assert {one.job.pk for one in claim_many(worker, 9, job_types=BOTH)} == {results[0].pk, results[3].pk}


def test_the_same_bulk_again_makes_nothing_and_answers_the_same(project):
    entries = [submission(project, spec()), Invalid({"x": ["wrong"]}), submission(project, spec())]
    first = submit_many(entries, idempotency=key())
    again = submit_many(entries, idempotency=key())
    assert (first.replayed, again.replayed) == (False, True)
    assert [getattr(one, "job_ulid", None) for one in again.results] == [
        getattr(one, "job_ulid", None) for one in first.results
    ]
    assert (again.results[1].code, again.results[1].facts) == ("invalid", {"errors": {"x": ["wrong"]}})
    assert Job.objects.count() == 2
    with pytest.raises(IdempotencyConflict):
        submit_many(entries, idempotency=key(fingerprint="another"))


def test_jobs_of_a_bulk_may_wait_for_others(project):
    first = submitted(project)
    entries = [submission(project, spec(), depends_on=(first.job_ulid,)) for _ in range(2)]
    jobs = submit_many(entries).results
    assert {job.state for job in jobs} == {JobState.BLOCKED}
    assert Dependency.objects.count() == 2
    assert Job.objects.filter(pk=first.pk, awaited=True).exists()


# --- cost -------------------------------------------------------------------------------------------------------------


def counted(act) -> int:
    with CaptureQueriesContext(connection) as made:
        answers = act()
    refused = [one for one in getattr(answers, "values", list)() if isinstance(one, LifecycleError)]
    assert refused == []
    return len(made)


# With the two of the savepoint that an operation is inside a test. What needs a transaction (`submit after`, `fail`) has
# a second savepoint: that of the attempt without one.
STATEMENTS = {
    "submit": 5, "submit after": 12, "claim": 1, "acknowledge": 4, "renew": 4, "complete": 4, "fail": 6,
}  # fmt: skip


@pytest.mark.parametrize("number", [1, 50])
def test_no_statement_is_made_for_each_job(project, worker, number):
    ahead = submitted_steps(project)
    free, waiting = [
        [submission(project, spec(), depends_on=needs) for _ in range(number)] for needs in ((), (ahead.job_ulid,))
    ]
    submit_many([*free, *free])
    counts = {"submit": counted(lambda: submit_many(free)), "submit after": counted(lambda: submit_many(waiting))}
    claims = claim_many(worker, 0)  # notes what the worker offers
    counts["claim"] = counted(lambda: claims.extend(claim_many(worker, number)))
    leases = [one.lease.lease_ulid for one in claims]
    counts["acknowledge"] = counted(
        lambda: batch_calls.acknowledge_many(batch_calls.messages_of(worker, dict.fromkeys(leases)))
    )
    beats = dict.fromkeys(leases, HeartbeatUpdate(phase="executing"))
    counts["renew"] = counted(lambda: batch_calls.renew_many(batch_calls.messages_of(worker, beats)))
    words = {name: CompleteMessage(f"run_{name}") for name in leases}
    counts["complete"] = counted(lambda: batch_calls.complete_many(batch_calls.messages_of(worker, words)))
    lost = [one.lease.lease_ulid for one in claim_many(worker, number)]
    shutdown = dict.fromkeys(lost, FailMessage(FailureReason.WORKER_SHUTDOWN))
    counts["fail"] = counted(lambda: batch_calls.fail_many(batch_calls.messages_of(worker, shutdown)))
    assert len(leases) == len(lost) == number
    assert counts == STATEMENTS


# --- races ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", [1, 2, 12])
def test_calls_for_many_and_single_verbs_in_opposite_order_have_one_winner_each(number):
    project, worker = ProjectFactory(), WorkerFactory(capacity=200)
    leases = held(worker, project, number, acknowledge=False)
    completed = {name: CompleteMessage(f"run_{name}") for name in leases}
    failed = dict.fromkeys(reversed(leases), FailMessage(FailureReason.WORKER_ERROR))

    def release(name):
        return _said(lambda: heartbeat.release(lease_ulid=name, worker=worker))

    answers = together(
        lambda: batch_calls.complete_many(batch_calls.messages_of(worker, completed)),
        lambda: batch_calls.fail_many(batch_calls.messages_of(worker, failed)),
        lambda: {name: release(name) for name in reversed(leases)},
    )
    assert all(isinstance(answer, dict) for answer in answers), answers
    for name in leases:
        effects = [answer for answer in answers if not isinstance(answer[name], LifecycleError)]
        assert len(effects) == 1, (name, answers)


def _said(say):
    try:
        return say()
    except LifecycleError as refusal:
        return refusal


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_claims_of_many_never_share_a_job():
    project = ProjectFactory()
    submit_many([submission(project, spec()) for _ in range(60)])
    workers = [WorkerFactory(capacity=100) for _ in range(4)]
    seen = threading.Lock()
    taken: list[int] = []

    def take(worker):
        for _ in range(12):
            claims = claim_many(worker, 5)
            with seen:
                taken.extend(one.job.pk for one in claims)

    together(*(lambda w=worker: take(w) for worker in workers))
    while claims := claim_many(workers[0], 64):
        taken.extend(one.job.pk for one in claims)
    assert len(taken) == len(set(taken)) == 60
