"""The heartbeat of a runner: records what it reports, ends jobs that it has lost, and claims the next job.

The claim, the snapshot of the secrets and the first tokens are one transaction. If a secret cannot be opened, nothing
is committed, and the job stays queued.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from leases.errors import StaleLease
from leases.models import Lease
from leases.scheduling.claims import Offer, claim_jobs
from leases.states import LeaseState
from orchestrator.core.counters import HEARTBEAT_CLAIMED, HEARTBEAT_NO_JOB, JWT_ISSUED, JWT_REJECTED, count
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.identity.request_tokens import TOKEN_VARIABLE, request_environment
from orchestrator.job_tokens.claims import JobToken, TokenPurpose, new_token
from orchestrator.protocols.shithub.authentication import INVALID_REGISTRATION
from orchestrator.protocols.shithub.errors import unauthenticated
from orchestrator.protocols.shithub.heartbeat.report import HeartbeatReport, require_bounds
from orchestrator.secrets.operations import SecretSnapshot, snapshot_secrets
from orchestrator.services import cancellation
from orchestrator.services.claiming import repeat_inconclusive
from orchestrator.workflows.claims import PreparedJob, prepare_job, skip_false_steps
from orchestrator.workflows.job_rows import require_run
from runtime_jobs.errors import Conflict
from runtime_jobs.models import Job, JobStep, WorkflowRun
from runtime_jobs.prepared_queries import PreparedQuery, fetch_all
from runtime_jobs.specs import ACTIONS
from runtime_jobs.specs.actions import label_requirement
from runtime_jobs.states import CancelReason
from workers.models import ActionsRunner, Pool, Worker
from workers.registry.models import WorkerState


@dataclass(frozen=True)
class ClaimedJob:
    """A job that a heartbeat has claimed, with all that its runner receives.

    Attributes:
        job: The job.
        run: Its workflow run, with the repository.
        steps: Its steps in order.
        values: Its secrets, variables and masks.
        prepared: The texts that the server has evaluated for the runner.
        api_token: The first token of its chain.
        checkout_token: The token with which it reads the repository.
    """

    job: Job
    run: WorkflowRun
    steps: list[JobStep]
    values: SecretSnapshot
    prepared: PreparedJob
    api_token: JobToken
    checkout_token: JobToken


@dataclass(frozen=True)
class _LockedRunner:
    """A runner whose worker is locked."""

    worker: Worker
    pool: Pool
    runner: ActionsRunner


_RUNNER = PreparedQuery(
    _LockedRunner,
    """JOIN workers_pool pool ON pool.id = t.pool_id JOIN actions_runners runner ON runner.worker_id = t.id
        WHERE t.id = %s FOR NO KEY UPDATE OF t""",
)
_STEPS = PreparedQuery(JobStep, "WHERE t.job_ulid = %s ORDER BY t.index")
_SEEN: Final = """
UPDATE workers_worker SET capacity = %s, last_seen_at = coalesce(%s, clock_timestamp()) WHERE id = %s
RETURNING last_seen_at
"""


@dataclass
class _Attempt:
    """The result of one attempt to claim.

    Attributes:
        claimed: The job, or None.
        again: The attempt was inconclusive.
    """

    claimed: ClaimedJob | None = None
    again: bool = False


def receive_heartbeat(runner_id: int, report: HeartbeatReport, *, now: datetime | None = None) -> ClaimedJob | None:
    """Record a heartbeat and claim the next job.

    Args:
        runner_id: The key of the runner.
        report: What it reports.

    Returns:
        The job, or None: there is none, the runner has no free capacity, or it is drained.

    Raises:
        ApiError: 400, the capacity or the active jobs are out of bounds; 401, the runner was revoked.
    """
    require_bounds(report, runner_id)
    if report.active_job_ids is not None:
        _end_lost_jobs(runner_id, report.active_job_ids)
    attempt = repeat_inconclusive(lambda: _record_and_claim(runner_id=runner_id, report=report, now=now))
    count([HEARTBEAT_NO_JOB] if attempt.claimed is None else [HEARTBEAT_CLAIMED, JWT_ISSUED, JWT_ISSUED])
    return attempt.claimed


def _end_lost_jobs(runner_id: int, active: list[int]) -> None:
    """End the jobs that the runner began and does not execute any more, each in a transaction of its own.

    A job that was claimed and not begun is left alone: the response to its claim may still be on the way. Its lease
    ends by itself, and the job is queued again.
    """
    worker = Worker.objects.get(pk=runner_id)
    leases = Lease.objects.open().filter(worker=worker, state=LeaseState.ACTIVE, job__job_type=ACTIONS)
    for lease_ulid in leases.exclude(job__pk__in=active).values_list("lease_ulid", flat=True):
        try:
            cancellation.stop_by_worker(
                lease_ulid=lease_ulid,
                worker=worker,
                reason=CancelReason.STOPPED_BY_WORKER,
                message="The runner does not execute the job any more.",
            )
        except (StaleLease, Conflict):
            continue  # the job has ended meanwhile


@operation
def _record_and_claim(uow: UnitOfWork, *, runner_id: int, report: HeartbeatReport, now: datetime | None) -> _Attempt:
    (found,) = _RUNNER.all(runner_id)
    worker, runner = found.worker, found.runner
    if worker.state == WorkerState.REVOKED:
        count([JWT_REJECTED])
        raise unauthenticated(INVALID_REGISTRATION)
    _record(worker, runner, report, now)
    result = claim_jobs(worker, _offer(worker, runner), limit=1, acknowledge=True, now=now)
    if not result.leases:
        return _Attempt(again=result.again)
    lease = result.leases[0]
    return _Attempt(_hand_out(uow, worker, lease, report))


def _record(worker: Worker, runner: ActionsRunner, report: HeartbeatReport, now: datetime | None) -> None:
    worker.capacity = report.capacity or worker.capacity
    ((worker.last_seen_at,),) = fetch_all(_SEEN, [worker.capacity, now, worker.pk])
    before = (runner.labels, runner.host_name, runner.version)
    runner.labels = runner.labels if report.labels is None else report.labels
    runner.host_name = report.host_name or runner.host_name
    runner.version = report.version or runner.version
    if (runner.labels, runner.host_name, runner.version) != before:
        runner.save(update_fields=["labels", "host_name", "version"])


def _offer(worker: Worker, runner: ActionsRunner) -> Offer:
    """Return the offer of a runner. The pool is the boundary: any label counts that the runner names."""
    return Offer(
        worker_id=worker.worker_id,
        pool=worker.pool.slug,
        job_types=(ACTIONS,),
        offers=frozenset(map(label_requirement, runner.labels)),
        isolation=runner.isolation,
    )


def _hand_out(uow: UnitOfWork, worker: Worker, lease: Lease, report: HeartbeatReport) -> ClaimedJob:
    """Read and evaluate what the runner receives of a claimed job, and store the snapshot of its secrets."""
    job = lease.job
    run = require_run(job)
    identity = request_environment(job, run, now=lease.leased_at)
    masks = [identity[TOKEN_VARIABLE]] if identity else []
    values = snapshot_secrets(uow, job, run, more_masks=masks, now=lease.leased_at)
    steps = _STEPS.all(job.job_ulid)
    prepared = prepare_job(
        run,
        job,
        steps,
        secrets=values.secrets,
        variables=values.variables,
        stops_at_failure=not report.is_of_later_generation,
    )
    prepared = replace(prepared, env=prepared.env | identity)
    skip_false_steps(uow, job, prepared, now=lease.leased_at)
    return ClaimedJob(job, run, steps, values, prepared, *_first_tokens(worker, lease, run))


def _first_tokens(worker: Worker, lease: Lease, run: WorkflowRun) -> tuple[JobToken, JobToken]:
    """Return the tokens of a new lease: the first one of its chain, and the one that reads the repository."""
    api_token, checkout_token = (
        new_token(
            purpose,
            runner_id=worker.pk,
            job_id=lease.job.pk,
            run_id=run.pk,
            repository_id=run.repository_id,
            fence=lease.fence,
            chain=0,
            now=lease.leased_at,
        )
        for purpose in (TokenPurpose.API, TokenPurpose.CHECKOUT)
    )
    return api_token, checkout_token
