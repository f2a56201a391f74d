"""Starts runs for deliveries. Delivery, batch and job are written in one transaction."""

from dataclasses import dataclass
from datetime import datetime

from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.protocols.github.deliveries import DeliveryFacts, first_delivery, save_delivery, save_duplicate
from orchestrator.protocols.github.models import Outcome, WebhookDelivery
from orchestrator.protocols.github.wire import GithubEvent, IgnoredEvent
from orchestrator.services.admission import load_context
from orchestrator.services.dependencies import EMPTY_SNAPSHOT
from orchestrator.services.submission import Submission, admit_job, enqueue_job, new_job
from runtime_jobs import validators
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, LifecycleError
from runtime_jobs.events import Actor
from runtime_jobs.models import Batch, Job, Project
from runtime_jobs.specs import JobPolicy, RuntimeSpec

GITHUB = Actor("client", "github")
MAX_REASON_LENGTH = 500


@dataclass(frozen=True)
class DeliveryResult:
    """Result of a delivery for one project.

    Attributes:
        outcome: What happened.
        first: The delivery that started the run, if there is a run.
        refusal: Why the run was refused.
    """

    outcome: Outcome
    first: WebhookDelivery | None = None
    refusal: LifecycleError | None = None


@operation
def handle_delivery(
    uow: UnitOfWork,
    event: GithubEvent | IgnoredEvent,
    delivery: DeliveryFacts,
    *,
    project_id: int,
    policy: JobPolicy,
    default_pool: str,
    now: datetime | None = None,
) -> DeliveryResult:
    """Start the run of an event, once per project.

    A repeated delivery or event returns the first run. A delivery that was ignored or refused is evaluated again,
    because an operator may have changed the cause. Deliveries of one project are serialized by a row lock.

    Args:
        uow: The unit of work, which `@operation` passes.
        event: The parsed event.
        delivery: Facts about the delivery.
        project_id: The project.
        policy: Policy of the new job.
        default_pool: Pool of projects without a pool.
        now: Timestamp for tests; the clock of the database otherwise.
    """
    projects = Project.objects.select_for_update(of=("self",), no_key=True).select_related("organization")
    project = projects.get(pk=project_id)
    received_at = now or database_now()
    key = event.key if isinstance(event, GithubEvent) else None
    if first := first_delivery(project, key, delivery.delivery_id):
        save_duplicate(project, event, delivery, received_at, first=first)
        return DeliveryResult(Outcome.DUPLICATE, first)
    if isinstance(event, IgnoredEvent) or (reason_not_run := _reason_not_run(event, project)):
        reason = event.reason if isinstance(event, IgnoredEvent) else reason_not_run
        save_delivery(project, event, delivery, received_at, outcome=Outcome.IGNORED, reason=reason)
        return DeliveryResult(Outcome.IGNORED)
    return _start_run(uow, project, event, delivery, received_at, policy=policy, default_pool=default_pool)


def _reason_not_run(event: GithubEvent, project: Project) -> str:
    if event.kind == "push" and not project.push_enabled:
        return "the project does not run pushes"
    return "" if project.configured_command else "the project has no configured command"


def _start_run(
    uow: UnitOfWork,
    project: Project,
    event: GithubEvent,
    delivery: DeliveryFacts,
    now: datetime,
    *,
    policy: JobPolicy,
    default_pool: str,
) -> DeliveryResult:
    try:
        with uow.savepoint():  # if the run is refused, only its delivery is stored
            job, batch = _submit(uow, project, event, delivery, now, policy=policy, default_pool=default_pool)
    except LifecycleError as refusal:
        reason = f"{refusal.code}: {refusal.message}"[:MAX_REASON_LENGTH]
        save_delivery(project, event, delivery, now, outcome=Outcome.REFUSED, reason=reason)
        return DeliveryResult(Outcome.REFUSED, refusal=refusal)
    run = {"event_key": event.key, "job_ulid": job.job_ulid, "batch_ulid": batch.batch_ulid}
    return DeliveryResult(
        Outcome.CREATED, save_delivery(project, event, delivery, now, outcome=Outcome.CREATED, reason="", **run)
    )


def _submit(
    uow: UnitOfWork,
    project: Project,
    event: GithubEvent,
    delivery: DeliveryFacts,
    now: datetime,
    *,
    policy: JobPolicy,
    default_pool: str,
) -> tuple[Job, Batch]:
    submission = _submission(project, event, delivery)
    job, batch = new_job(submission, policy), _create_batch(submission, event, delivery, now)
    job.batch = batch
    context = load_context(uow, [submission.project_key], default_pool=default_pool)
    status = admit_job(job, submission, context, EMPTY_SNAPSHOT)
    return enqueue_job(uow, job, submission, status, now=now, actor=GITHUB), batch


def _submission(project: Project, event: GithubEvent, delivery: DeliveryFacts) -> Submission:
    return Submission(
        org_slug=project.organization.slug,
        project_slug=project.slug,
        spec=configured_spec(project, event),
        trigger_kind=event.kind,
        trigger_actor=event.actor,
        correlation_id=delivery.correlation_id,
        source_address=delivery.source_address,
    )


def configured_spec(project: Project, event: GithubEvent) -> RuntimeSpec:
    """Return the configured command of the project on the commit of the event. Code of a fork gets no network.

    Raises:
        Invalid: The configured command is invalid. The columns can hold values that the admin's form would refuse.
    """
    problems = {
        "configured_command": validators.validate_command(project.configured_command),
        "configured_directory": validators.validate_directory(project.configured_directory),
    }
    if errors := {name: [problem] for name, problem in problems.items() if problem}:
        raise Invalid(errors, "The configured command of the project is not valid. An operator can correct it.")
    return RuntimeSpec(
        repo_url=event.repo_url,
        owner=event.owner,
        repo=event.name,
        ref=event.ref,
        git_commit=event.commit,
        pull_request_number=event.number,
        working_directory=project.configured_directory,
        command=tuple(project.configured_command),
        timeout_seconds=project.configured_timeout_seconds,
        allow_network=project.configured_network and not event.from_fork,
        allow_exec=True,
    )


def _create_batch(submission: Submission, event: GithubEvent, delivery: DeliveryFacts, now: datetime) -> Batch:
    return Batch.objects.create(
        org_slug=submission.org_slug,
        project_slug=submission.project_slug,
        repo_url=event.repo_url,
        git_ref=event.ref,
        git_commit=event.commit,
        trigger_kind=event.kind,
        trigger_actor=event.actor,
        details={
            "provider": "github",
            "event_key": event.key,
            "delivery_id": delivery.delivery_id,
            "action": event.action,
            "pull_request_number": event.number,
            "from_fork": event.from_fork,
        },
        correlation_id=submission.correlation_id,
        created_at=now,
    )
