"""Creates a run: project, branch, testbed, report and job in one transaction, so that a refusal leaves nothing."""

from collections.abc import Sequence
from datetime import datetime

from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.images.references import InvalidReference, registry_url, resolve_digest
from orchestrator.protocols.bencher.errors import bad_request
from orchestrator.protocols.bencher.resource_ids import parse_uuid, row_filter
from orchestrator.protocols.bencher.runs.projects import project_of_run
from orchestrator.protocols.bencher.runs.request import BenchmarkJob, RunRequest, RunSender
from orchestrator.results.adapters import Average, Results
from orchestrator.results.folding import Fold
from orchestrator.results.models import Branch, Report, Testbed
from orchestrator.results.names import (
    ResourceLimitReached,
    UnknownResource,
    find_testbed,
    get_or_create_branch,
    get_or_create_testbed,
)
from orchestrator.results.processing import store_results
from orchestrator.results.reading import ReadingSettings, UnreadableResult, read_texts
from orchestrator.services.admission import load_context
from orchestrator.services.dependencies import EMPTY_SNAPSHOT
from orchestrator.services.hardware_specs import lock_active
from orchestrator.services.submission import Submission, admit_job, enqueue_job, new_job
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Project
from runtime_jobs.specs import JobPolicy, OciSpec
from workers.models import HardwareSpec

TRIGGER = "manual"
NO_SPEC = "spec: Name a hardware spec, or a testbed that has one. No spec is the fallback of this server."


def read_results(run: RunRequest) -> list[Results]:
    """Return the metrics of a run without a job. This needs no transaction.

    Raises:
        ApiError: 400; the adapter cannot read a result.
    """
    average = Average(run.average) if run.average else None
    fold = Fold(run.fold) if run.fold else None
    try:
        return read_texts(run.results, ReadingSettings(run.adapter, average, fold))
    except UnreadableResult as error:
        raise bad_request(f"results: {error}") from None


# Requests at the same time may create the same project, organization or report. The later one finds the row with its
# next attempt. Every unique constraint has an underscore in its name.
@operation(retry_unique_violation="_")
def create_run(
    uow: UnitOfWork,
    run: RunRequest,
    sender: RunSender,
    *,
    results: Sequence[Results],
    policy: JobPolicy,
    default_pool: str,
    now: datetime | None = None,
) -> Report:
    """Create the report of a run, with its job or its metrics.

    Args:
        run: The request.
        sender: The sender.
        results: The metrics of a run without a job.
        policy: The policy of the job.
        default_pool: The slug of the pool of projects that name none.

    Returns:
        The report, or that of the first request with the same idempotency key.

    Raises:
        ApiError: The request is not valid, or not permitted.
        LifecycleError: Any error of `admit_job`; NotFound also for a project, spec, branch or testbed.
    """
    project = project_of_run(uow, run, sender)
    if run.idempotency_key is not None:
        first = Report.objects.filter(project=project, idempotency_key=run.idempotency_key).first()
        if first is not None:
            return first
    created_at = now or database_now()
    try:
        branch = get_or_create_branch(project, run.branch)
        if run.job is None:
            return _store_report(run, sender, project, branch, results, now=created_at)
        return _submit_job(
            uow, run, sender, project, branch, job=run.job, policy=policy, default_pool=default_pool, now=created_at
        )
    except UnknownResource as error:
        raise NotFound(str(error)) from None
    except ResourceLimitReached as error:
        raise bad_request(str(error)) from None


def _store_report(
    run: RunRequest,
    sender: RunSender,
    project: Project,
    branch: Branch,
    results: Sequence[Results],
    *,
    now: datetime,
) -> Report:
    testbed = get_or_create_testbed(project, run.testbed or "")
    _use_testbed(testbed, None if run.spec_reset else testbed.spec, now)
    report = _new_report(run, sender, testbed, branch, now)
    report.save(force_insert=True)
    try:
        store_results(report, results)
    except UnreadableResult as error:
        raise bad_request(f"results: {error}") from None
    return report


def _submit_job(
    uow: UnitOfWork,
    run: RunRequest,
    sender: RunSender,
    project: Project,
    branch: Branch,
    *,
    job: BenchmarkJob,
    policy: JobPolicy,
    default_pool: str,
    now: datetime,
) -> Report:
    # The spec is locked before any testbed is created or changed, in the order of whoever archives the spec.
    named = None if run.testbed is None else find_testbed(project, run.testbed)
    spec = _lock_spec(job.spec, None if run.spec_reset else named)
    testbed = named or get_or_create_testbed(project, run.testbed or spec.name)
    _use_testbed(testbed, spec, now)
    try:
        digest = resolve_digest(project, job.reference)
    except InvalidReference as error:
        raise bad_request(f"image: {error}") from None
    organization = project.organization
    context = load_context(uow, [(organization.slug, project.slug)], default_pool=default_pool)
    plan = context.organizations[organization.slug].plan
    submission = Submission(
        org_slug=organization.slug,
        project_slug=project.slug,
        spec=_oci_spec(
            run, job, project, spec, digest=digest, timeout_seconds=plan.bounded_timeout(job.timeout_seconds)
        ),
        trigger_kind=TRIGGER,
        trigger_actor=sender.caller.actor.name,
        correlation_id=sender.correlation_id,
        source_address=sender.source_address,
    )
    row = new_job(submission, policy)
    status = admit_job(row, submission, context, EMPTY_SNAPSHOT)
    report = _new_report(run, sender, testbed, branch, now)
    report.job_id, report.spec = row.job_ulid, spec
    uow.extra_rows.append(report)
    enqueue_job(uow, row, submission, status, now=now, actor=sender.caller.actor)
    return report


def _lock_spec(requested: str | None, testbed: Testbed | None) -> HardwareSpec:
    """Return the hardware spec of a job: the requested one, that of the named testbed, or the fallback.

    It is neither archived nor deleted before the end of the transaction.

    Raises:
        NotFound: The requested spec does not exist or is archived.
        ApiError: 400; there is none of the three.
    """
    active = HardwareSpec.objects.filter(archived_at__isnull=True)
    if requested is not None:
        spec = active.filter(**row_filter(parse_uuid(requested) or requested)).first()
        if spec is None or not lock_active(spec):
            raise NotFound(f"There is no hardware spec {requested}, or it is archived.")
        return spec
    attached = None if testbed is None else testbed.spec
    if attached is not None and lock_active(attached):
        return attached
    while (fallback := active.filter(fallback_at__isnull=False).first()) is not None:
        if lock_active(fallback):
            return fallback  # else it was archived meanwhile, and another spec may be the fallback
    raise bad_request(NO_SPEC)


def _use_testbed(testbed: Testbed, spec: HardwareSpec | None, now: datetime) -> None:
    """Attach a hardware spec to a testbed, which is not archived any more. An unchanged spec is not stored again."""
    changed = []
    if testbed.spec != spec:
        testbed.spec = spec
        changed.append("spec")
    if testbed.archived_at is not None:
        testbed.archived_at = None
        changed.append("archived_at")
    if changed:
        testbed.modified_at = now
        testbed.save(update_fields=[*changed, "modified_at"])


def _oci_spec(
    run: RunRequest, job: BenchmarkJob, project: Project, spec: HardwareSpec, *, digest: str, timeout_seconds: int
) -> OciSpec:
    return OciSpec(
        hardware_spec=str(spec.uuid),
        least_isolation=spec.least_isolation,
        registry=registry_url(),
        project=str(project.uuid),
        image_digest=digest,
        timeout_seconds=timeout_seconds,
        image=job.image,
        entrypoint=job.entrypoint,
        cmd=job.cmd,
        env=job.env,
        file_paths=job.file_paths,
        build_time=job.build_time,
        file_size=job.file_size,
        average=run.average,
        iterations=job.iterations,
        fold=run.fold,
        allow_failure=job.allow_failure,
        backdate=job.backdate,
    )


def _new_report(run: RunRequest, sender: RunSender, testbed: Testbed, branch: Branch, now: datetime) -> Report:
    """Return a new report. A run with a job has no times yet: both are that of the request until the job has ended."""
    start, end = (now, now) if run.job else (run.start_time or now, run.end_time or now)
    return Report(
        project=branch.project,
        branch=branch,
        testbed=testbed,
        git_hash=run.git_hash or "",
        adapter=run.adapter,
        average=run.average or "",
        fold=run.fold or "",
        start_time=start,
        end_time=end,
        idempotency_key=run.idempotency_key,
        created_by=sender.caller.actor.name[:200],
        created_at=now,
    )
