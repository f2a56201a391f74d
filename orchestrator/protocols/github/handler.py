"""A delivery becomes a run: its row, the batch and the job are there together, or none of them is."""

from dataclasses import dataclass
from datetime import datetime

from orchestrator.protocols.github.deliveries import Delivery, first_of, save_delivery, save_repeat
from orchestrator.protocols.github.models import Outcome, WebhookDelivery
from orchestrator.protocols.github.runs import batch_of, submission_of
from orchestrator.protocols.github.wire import Event, Ignored
from orchestrator.services.admission import load_context
from orchestrator.services.dependencies import EMPTY_SNAPSHOT
from orchestrator.services.submission import admit_job, enqueue_job, new_job
from orchestrator.services.unit_of_work import UnitOfWork, operation
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import LifecycleError
from runtime_jobs.events import Actor
from runtime_jobs.models import Batch, Job, Project
from runtime_jobs.policy import JobPolicy

GITHUB = Actor("client", "github")
REASON_LIMIT = 500


@dataclass(frozen=True)
class DeliveryResult:
    """What came of it. `first` is the row of the run that the delivery stands for; `refusal`: why there is none."""

    outcome: Outcome
    first: WebhookDelivery | None = None
    refusal: LifecycleError | None = None


@operation
def handle_delivery(
    uow: UnitOfWork,
    event: Event | Ignored,
    delivery: Delivery,
    *,
    project_id: int,
    policy: JobPolicy,
    default_pool: str,
    now: datetime | None = None,
) -> DeliveryResult:
    """Make the run that the event asks for, once for the project.

    The same delivery or the same event again returns the first run. What was ignored or refused is looked at afresh:
    the operator may have changed what was in the way. Deliveries of one project wait for each other."""
    project = Project.objects.select_for_update(of=("self",), no_key=True).select_related("organization")
    mine = project.get(pk=project_id)
    at = now or database_now()
    key = event.key if isinstance(event, Event) else None
    if first := first_of(mine, key, delivery.delivery_id):
        save_repeat(mine, event, delivery, at, first=first)
        return DeliveryResult(Outcome.DUPLICATE, first)
    if isinstance(event, Ignored) or (why := _in_the_way(event, mine)):
        reason = event.reason if isinstance(event, Ignored) else why
        save_delivery(mine, event, delivery, at, outcome=Outcome.IGNORED, reason=reason)
        return DeliveryResult(Outcome.IGNORED)
    return _run(uow, mine, event, delivery, at, policy=policy, default_pool=default_pool)


def _in_the_way(event: Event, project: Project) -> str:
    if event.kind == "push" and not project.push_enabled:
        return "the project does not run pushes"
    return "" if project.configured_command else "the project has no configured command"


def _run(
    uow: UnitOfWork,
    project: Project,
    event: Event,
    delivery: Delivery,
    at: datetime,
    *,
    policy: JobPolicy,
    default_pool: str,
) -> DeliveryResult:
    try:
        with uow.savepoint():  # a refusal leaves its row, and nothing else
            job, batch = _submitted(uow, project, event, delivery, at, policy=policy, default_pool=default_pool)
    except LifecycleError as refusal:
        reason = f"{refusal.code}: {refusal.message}"[:REASON_LIMIT]
        save_delivery(project, event, delivery, at, outcome=Outcome.REFUSED, reason=reason)
        return DeliveryResult(Outcome.REFUSED, refusal=refusal)
    made = {"event_key": event.key, "job_ulid": job.job_ulid, "batch_ulid": batch.batch_ulid}
    return DeliveryResult(
        Outcome.CREATED, save_delivery(project, event, delivery, at, outcome=Outcome.CREATED, reason="", **made)
    )


def _submitted(
    uow: UnitOfWork,
    project: Project,
    event: Event,
    delivery: Delivery,
    at: datetime,
    *,
    policy: JobPolicy,
    default_pool: str,
) -> tuple[Job, Batch]:
    submission = submission_of(project, event, delivery)
    job, batch = new_job(submission, policy), batch_of(submission, event, delivery, at)
    job.batch = batch
    context = load_context(uow, [submission.project_key], default_pool=default_pool)
    status = admit_job(uow, job, submission, context, EMPTY_SNAPSHOT)
    return enqueue_job(uow, job, submission, status, now=at, actor=GITHUB), batch
