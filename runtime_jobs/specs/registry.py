"""The table of job types: the rules that differ between them.

Operations read the table and the policy of the job, so that a further type is one more entry. Only code for one type,
such as the admission of a `pack-run`, compares the name of the type.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from django.conf import settings

from runtime_jobs.models.jobs import Job
from runtime_jobs.models.tenants import JobTrace
from runtime_jobs.specs import actions, exports, manifests, oci, packs, payload, runtime, steps
from runtime_jobs.specs.manifests import JobProducts
from runtime_jobs.specs.readiness import JobReadiness, readiness_of
from runtime_jobs.specs.source import RepositorySource


class JobSpec(Protocol):
    """A validated specification, of the class of its job type."""

    @property
    def job_type(self) -> str: ...

    @property
    def source(self) -> RepositorySource | None:
        """The repository, which the project must allow."""
        ...

    @property
    def timeout_seconds(self) -> int: ...

    @property
    def least_isolation(self) -> str | None:
        """The isolation that the job needs, or None for that of the project or the pool."""
        ...

    @property
    def trace(self) -> str | None:
        """The level of trace that the job asks for, or None for that of the project or the pool."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical request."""
        ...

    def columns(self) -> dict[str, Any]:
        """Return the columns of a new job."""
        ...


@dataclass(frozen=True)
class JobPolicy:
    """Rules for one job: set at submit, copied to its row, read by every operation. Durations are in seconds.

    The columns of `Job` have the same names.

    Attributes:
        max_requeues: How often the job waits again because a worker never acknowledged its lease.
        automatic_retries: New attempts after crashes of workers.
        needs_ingest: A success needs a run in ingest.
        complete_beats_cancel: A result in time beats a cancel request.
        lease_ttl_seconds: Duration of a lease without a heartbeat.
        heartbeat_interval_seconds: Time between two heartbeats.
        acknowledge_within_seconds: Duration of a lease that is not acknowledged.
        late_result_seconds: A lease that ends without a result leaves the job `lost`. A result still counts for so
            long. With 0 the job fails at once.
        needs_processing: `complete` leaves the job `processing`, and `settle` ends it when the result was read.
        timeout_grace_seconds: Time after the time limit of the job before the server ends the job.
        is_metered: The minutes of its execution are billed.
    """

    max_requeues: int
    automatic_retries: int
    needs_ingest: bool
    complete_beats_cancel: bool
    lease_ttl_seconds: int
    heartbeat_interval_seconds: int
    acknowledge_within_seconds: int
    late_result_seconds: int = 0
    needs_processing: bool = False
    timeout_grace_seconds: int = 60
    is_metered: bool = False

    def __post_init__(self) -> None:
        """Refuse rules that contradict one another.

        Raises:
            ValueError: A late result is read as any other, so it needs processing. A run in ingest is not read.
        """
        if self.late_result_seconds and not self.needs_processing:
            raise ValueError("late_result_seconds: only a job type with needs_processing can have late results.")
        if self.needs_processing and self.needs_ingest:
            raise ValueError("needs_processing: a job type with needs_ingest cannot have it.")


@dataclass(frozen=True)
class JobType:
    """A job type.

    Attributes:
        from_job: Returns the specification that the columns of a job contain.
        serialize: Returns the specification as it was submitted.
        serialize_for_lease: Returns the members of a lease. The second argument has `least_isolation`, `egress` and
            `trace`.
        trace_levels: The levels of trace that a result of this type can show, first that of jobs of which nobody says
            another. A worker must offer `ptrace` for any other level but `none`.
        needs_ingest: A success needs a run in ingest. Otherwise the worker's report alone decides.
        complete_beats_cancel: A result in ingest beats a cancel. Otherwise a cancel beats a late result.
        needs_hosted_analysis: Only organizations with hosted runtime analysis may submit this type.
        needs_processing: The result of a job is read before the job succeeds.
        is_metered: The minutes of a job are billed.
        needs_enabled_project: Only projects that an operator has enabled may submit this type.
        configured: Returns the rules of this installation for the type, where they differ from the rules of all types.
        is_retryable: A further attempt of a job means the same as the job. Otherwise something outside of the job, such
            as the report of a run, belongs to the first attempt, and the result of another one would be in no report.
        pool: Returns the pool of a job with this specification. Without it, or for None, the project names the pool.
        has_steps: Jobs have rows of steps, which end with the job.
        readiness: Decides on a blocked job whose dependencies have ended. Without it such a job is queued.
        in_workflow_runs: The jobs belong to workflow runs, which are checked after each end of a job.
        times_out_when_silent: A lease that expires at or after the time limit ends the job as timed out. Otherwise its
            worker is lost, which may cause an automatic retry or a late result.
        has_payload: The specification is a payload, for which an organization may have a JSON Schema.
        manifest: Returns the manifest of a job that has ended: inputs, environment, outputs. Without it a job cannot be
            replayed, because something outside of the job belongs to its first execution.
        unpinned: Returns what of a job is not fixed, each a sentence. Another execution may then have other outputs.
        own_terms: Returns the members of the policy that a specification names itself.
    """

    from_job: Callable[[Job], JobSpec]
    serialize: Callable[[Job], dict[str, Any]]
    serialize_for_lease: Callable[[Job, dict[str, Any]], dict[str, Any]]
    needs_ingest: bool
    complete_beats_cancel: bool
    needs_hosted_analysis: bool
    trace_levels: tuple[JobTrace, ...] = (JobTrace.NONE,)
    needs_processing: bool = False
    is_metered: bool = False
    needs_enabled_project: bool = True
    is_retryable: bool = True
    configured: Callable[[], dict[str, int]] = dict
    pool: Callable[[Any], str | None] | None = None
    has_steps: bool = False
    readiness: Callable[[Job], JobReadiness] | None = None
    in_workflow_runs: bool = False
    times_out_when_silent: bool = False
    has_payload: bool = False
    manifest: Callable[[Job, JobProducts], dict[str, Any]] | None = None
    unpinned: Callable[[Job], tuple[str, ...]] = lambda _: ()
    own_terms: Callable[[Any], dict[str, int]] = lambda _: {}

    def policy(
        self,
        *,
        lease_ttl_seconds: int,
        heartbeat_interval_seconds: int,
        acknowledge_within_seconds: int,
        max_requeues: int,
        automatic_retries: int = 1,
        late_result_seconds: int = 0,
        timeout_grace_seconds: int = 60,
    ) -> JobPolicy:
        """Return the policy of a new job of this type."""
        return JobPolicy(
            max_requeues=max_requeues,
            automatic_retries=automatic_retries,
            needs_ingest=self.needs_ingest,
            complete_beats_cancel=self.complete_beats_cancel,
            lease_ttl_seconds=lease_ttl_seconds,
            heartbeat_interval_seconds=heartbeat_interval_seconds,
            acknowledge_within_seconds=acknowledge_within_seconds,
            late_result_seconds=late_result_seconds,
            needs_processing=self.needs_processing,
            timeout_grace_seconds=timeout_grace_seconds,
            is_metered=self.is_metered,
        )


def _pool_of_export(spec: payload.PayloadSpec) -> str | None:
    """Return the pool of an export that the server executes itself. Other exports wait for workers of the tenant."""
    return settings.EXPORT_POOL if exports.is_audit_bundle(spec.payload) else None


# What steps did is a part of their result only where somebody asked for it: a trace costs a build half of its own time.
_TRACED_ON_REQUEST = (JobTrace.NONE, JobTrace.NETWORK, JobTrace.FULL)

JOB_TYPES = {
    runtime.RUNTIME: JobType(
        from_job=runtime.runtime_from_job,
        serialize=runtime.serialize_runtime,
        serialize_for_lease=runtime.serialize_runtime_for_lease,
        needs_ingest=True,
        complete_beats_cancel=True,
        needs_hosted_analysis=True,
        trace_levels=(JobTrace.FULL, JobTrace.NETWORK, JobTrace.NONE),
        manifest=manifests.run_manifest,
        unpinned=manifests.unpinned_execution,
    ),
    steps.STEPS: JobType(
        from_job=steps.steps_from_job,
        serialize=steps.serialize_steps,
        serialize_for_lease=steps.serialize_steps_for_lease,
        needs_ingest=False,
        complete_beats_cancel=False,
        needs_hosted_analysis=False,
        trace_levels=_TRACED_ON_REQUEST,
        manifest=manifests.reported_manifest,
        unpinned=manifests.unpinned_steps,
    ),
    oci.OCI: JobType(
        from_job=oci.oci_from_job,
        serialize=oci.serialize_oci,
        serialize_for_lease=oci.serialize_oci_for_lease,
        needs_ingest=False,
        complete_beats_cancel=False,
        needs_hosted_analysis=False,
        trace_levels=_TRACED_ON_REQUEST,
        needs_processing=True,
        is_metered=True,
        needs_enabled_project=False,
        is_retryable=False,
        configured=oci.configured_oci,
        pool=lambda _spec: settings.RUNNER_POOL,
    ),
    actions.ACTIONS: JobType(
        from_job=actions.actions_from_job,
        serialize=actions.serialize_actions,
        serialize_for_lease=actions.serialize_actions_for_lease,
        needs_ingest=False,
        complete_beats_cancel=True,
        needs_hosted_analysis=False,
        is_retryable=False,
        has_steps=True,
        configured=actions.configured_actions,
        readiness=readiness_of,
        in_workflow_runs=True,
        times_out_when_silent=True,
    ),
    **{
        job_type: JobType(
            from_job=payload.payload_from_job,
            serialize=payload.serialize_payload,
            serialize_for_lease=payload.serialize_payload_for_lease,
            needs_ingest=False,
            complete_beats_cancel=False,
            needs_hosted_analysis=False,
            has_payload=True,
            pool=_pool_of_export if job_type == payload.EXPORT else None,
            manifest=manifests.reported_manifest,
            unpinned=manifests.unpinned_payload,
            configured=lambda: {"timeout_grace_seconds": settings.PAYLOAD_TIMEOUT_GRACE_SECONDS},
        )
        for job_type in payload.PAYLOAD_TYPES
    },
}
JOB_TYPES[payload.PACK_RUN] = replace(  # a payload with the plan of a pack
    JOB_TYPES[payload.PACK_RUN],
    serialize_for_lease=packs.serialize_pack_for_lease,
    own_terms=packs.heartbeat_terms,
    trace_levels=_TRACED_ON_REQUEST,
)


def configured_policy(job_type: str) -> JobPolicy:
    """Return the policy of a new job: the rules of its type with the durations of this installation."""
    rules = {
        "lease_ttl_seconds": settings.LEASE_TTL_SECONDS,
        "heartbeat_interval_seconds": settings.HEARTBEAT_INTERVAL_SECONDS,
        "acknowledge_within_seconds": settings.ACKNOWLEDGE_WITHIN_SECONDS,
        "max_requeues": settings.MAX_REQUEUES,
        "automatic_retries": settings.AUTOMATIC_RETRIES.get(job_type, 1),
        "timeout_grace_seconds": settings.TIMEOUT_GRACE_SECONDS,
    }
    kind = JOB_TYPES[job_type]
    return kind.policy(**rules | kind.configured())
