"""A delivery becomes a run: its row, the batch and the job are there together, or none of them is."""

from dataclasses import dataclass
from datetime import datetime

from orchestrator.lifecycle.admission import known_for
from orchestrator.lifecycle.by_client import new_job, place, queue
from orchestrator.lifecycle.dependencies import NOTHING
from orchestrator.lifecycle.transaction import savepoint, verb
from orchestrator.protocols.github.keeping import Delivery, first_of, keep, keep_repeat
from orchestrator.protocols.github.models import Outcome, WebhookDelivery
from orchestrator.protocols.github.runs import batch_of, submission_of
from orchestrator.protocols.github.wire import Event, Ignored
from runtime_jobs.clock import database_time
from runtime_jobs.errors import LifecycleError
from runtime_jobs.events import Actor
from runtime_jobs.models import Batch, Job, Project
from runtime_jobs.policy import Policy

GITHUB = Actor("client", "github")
REASON_LIMIT = 500


@dataclass(frozen=True)
class Taken:
    """What came of it. `first` is the row of the run that the delivery stands for; `refusal`: why there is none."""

    outcome: Outcome
    first: WebhookDelivery | None = None
    refusal: LifecycleError | None = None


@verb
def take(
    event: Event | Ignored,
    delivery: Delivery,
    *,
    project_id: int,
    policy: Policy,
    default_pool: str,
    now: datetime | None = None,
) -> Taken:
    """Make the run that the event asks for, once for the project.

    The same delivery or the same event again returns the first run. What was ignored or refused is looked at afresh:
    the operator may have changed what was in the way. Deliveries of one project wait for each other."""
    project = Project.objects.select_for_update(of=("self",), no_key=True).select_related("organization")
    mine = project.get(pk=project_id)
    at = now or database_time()
    key = event.key if isinstance(event, Event) else None
    if first := first_of(mine, key, delivery.delivery_id):
        keep_repeat(mine, event, delivery, at, first=first)
        return Taken(Outcome.DUPLICATE, first)
    if isinstance(event, Ignored) or (why := _in_the_way(event, mine)):
        reason = event.reason if isinstance(event, Ignored) else why
        keep(mine, event, delivery, at, outcome=Outcome.IGNORED, reason=reason)
        return Taken(Outcome.IGNORED)
    return _run(mine, event, delivery, at, policy=policy, default_pool=default_pool)


def _in_the_way(event: Event, project: Project) -> str:
    if event.kind == "push" and not project.push_enabled:
        return "the project does not run pushes"
    return "" if project.configured_command else "the project has no configured command"


def _run(
    project: Project, event: Event, delivery: Delivery, at: datetime, *, policy: Policy, default_pool: str
) -> Taken:
    try:
        with savepoint():  # a refusal leaves its row, and nothing else
            job, batch = _submitted(project, event, delivery, at, policy=policy, default_pool=default_pool)
    except LifecycleError as refusal:
        reason = f"{refusal.code}: {refusal.message}"[:REASON_LIMIT]
        keep(project, event, delivery, at, outcome=Outcome.REFUSED, reason=reason)
        return Taken(Outcome.REFUSED, refusal=refusal)
    made = {"event_key": event.key, "job_ulid": job.job_ulid, "batch_ulid": batch.batch_ulid}
    return Taken(Outcome.CREATED, keep(project, event, delivery, at, outcome=Outcome.CREATED, reason="", **made))


def _submitted(
    project: Project, event: Event, delivery: Delivery, at: datetime, *, policy: Policy, default_pool: str
) -> tuple[Job, Batch]:
    submission = submission_of(project, event, delivery)
    job, batch = new_job(submission, policy), batch_of(submission, event, delivery, at)
    job.batch = batch
    standing = place(job, submission, known_for([submission.home], default_pool=default_pool), NOTHING)
    return queue(job, submission, standing, at=at, by=GITHUB), batch
