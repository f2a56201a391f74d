"""Bulk actions: counted and stored, aborted, and their progress. Dispatchers apply them to each target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.conf import settings

from leases.advisory_locks import RECURRING_OF_ORGANIZATION, advisory_xact_lock
from orchestrator.bulk_actions.models import OPEN_STATUSES, BulkAction, BulkStatus, BulkTarget, TargetOutcome
from orchestrator.core.cause import Cause
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.core.operator_events import record_event_of
from orchestrator.core.unit_of_work import UnitOfWork, operation
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound, ResourceConflict
from runtime_jobs.events import SYSTEM
from runtime_jobs.models import Organization

TargetStore = Callable[..., int]
NO_BULK_ACTION: Final = "There is no such bulk action, or you may not see it."


@dataclass(frozen=True)
class TargetResult:
    """The result of the operation for one target.

    Attributes:
        target_id: The key of the target.
        error_code: The code of the refusal, or an empty text.
        detail: The text of the refusal.
    """

    target_id: int
    error_code: str = ""
    detail: str = ""


@operation
def start_bulk_action(
    _: UnitOfWork,
    *,
    organization: Organization,
    action: str,
    filters: dict[str, Any],
    store_targets: TargetStore,
    cause: Cause,
    idempotency: IdempotentRequest | None = None,
) -> tuple[BulkAction, bool]:
    """Store a bulk action with its targets, counted. Dispatchers apply it then.

    Jobs and incidents that match later are not concerned.

    Args:
        organization: The organization of the targets.
        action: The name of the action.
        filters: The filter; at least one member.
        store_targets: `orchestrator.bulk_actions.targets.store_targets`.
        idempotency: The key of the request. A repetition returns the first action.

    Returns:
        The action, and whether it is new.

    Raises:
        Invalid: The filter is empty, or more rows match than one action may change.
        ResourceConflict: The organization has as many open bulk actions as it may have.
        NotFound: The action that an earlier request with this key has started was deleted.
    """
    if not filters:
        raise Invalid({"filter": ["Must have at least one member."]})
    advisory_xact_lock(RECURRING_OF_ORGANIZATION, organization.pk)
    created_at = cause.now or database_now()
    row = BulkAction(
        organization=organization, action=action, filters=filters, reason=cause.reason, created_at=created_at
    )
    if idempotency and (first := idempotency.bind(row.bulk_action_ulid, now=created_at)) != row.bulk_action_ulid:
        return find_bulk_action(first), False
    limit = settings.BULK_ACTIONS_PER_ORGANIZATION
    if organization.bulk_actions.filter(finished_at=None).count() >= limit:
        message = f"The organization has {limit} open bulk actions, which is its limit. Wait, or abort one."
        raise ResourceConflict(message, limit=limit)
    row.actor_kind, row.actor_name, row.source_address = cause.actor.kind, cause.actor.name[:200], cause.source_address
    row.total = 0
    row.save()
    most = settings.BULK_ACTION_TARGETS
    row.total = store_targets(row.pk, action, organization.slug, filters, limit=most)
    if row.total > most:
        raise Invalid({"filter": [f"Matches more than {most} rows, the limit of one bulk action. Narrow it."]})
    if row.total == 0:
        row.status, row.finished_at = BulkStatus.COMPLETED, created_at
    row.save(update_fields=["total", "status", "finished_at"])
    after = {"action": action, "filter": filters, "total": row.total}
    record_event_of(row, "started", cause.at(created_at), after=after)
    return row, True


@operation
def abort_bulk_action(
    _: UnitOfWork,
    *,
    bulk_action_ulid: str,
    cause: Cause,
) -> BulkAction:
    """Stop a bulk action. What it has changed stays changed. A second call changes nothing.

    A dispatcher that applies targets at this time ends with those: the status is `aborting` until then.

    Raises:
        NotFound: The action does not exist.
        ResourceConflict: The action is completed.
    """
    row = _lock(bulk_action_ulid)
    aborted_at = cause.now or database_now()
    if row.status == BulkStatus.COMPLETED:
        raise ResourceConflict("The bulk action is completed.")
    if row.status not in {BulkStatus.PENDING, BulkStatus.RUNNING}:
        return row
    is_claimed = row.claimed_until is not None and row.claimed_until > aborted_at
    row.status = BulkStatus.ABORTING if is_claimed else BulkStatus.ABORTED
    row.finished_at = None if is_claimed else aborted_at
    row.aborted_by = str(cause.actor)[:200]
    row.save(update_fields=["status", "finished_at", "aborted_by"])
    after = {"total": row.total, "done": row.done, "refused": row.refused}
    record_event_of(row, "aborted", cause.at(aborted_at), after=after)
    return row


@operation
def record_bulk_progress(
    _: UnitOfWork, *, bulk_action_ulid: str, results: Sequence[TargetResult], now: datetime | None = None
) -> BulkAction:
    """Record the results of targets, end the claim, and end the action if no target is left or it was aborted.

    A target counts once: of two dispatchers that have applied it, the first one that records it.

    Args:
        results: The results of a dispatcher.

    Raises:
        NotFound: The action does not exist.
    """
    row = _lock(bulk_action_ulid)
    recorded_at = now or database_now()
    pending = BulkTarget.objects.filter(bulk_action=row, outcome=TargetOutcome.PENDING)
    done = [result.target_id for result in results if not result.error_code]
    row.done += pending.filter(pk__in=done).update(outcome=TargetOutcome.DONE, finished_at=recorded_at)
    for result in results:
        if result.error_code:
            row.refused += pending.filter(pk=result.target_id).update(
                outcome=TargetOutcome.REFUSED,
                error_code=result.error_code,
                detail=result.detail,
                finished_at=recorded_at,
            )
    row.claimed_until, row.advanced_at = None, recorded_at
    if row.status == BulkStatus.ABORTING:
        row.status, row.finished_at = BulkStatus.ABORTED, recorded_at
    elif row.status in OPEN_STATUSES and row.done + row.refused >= row.total:
        row.status, row.finished_at = BulkStatus.COMPLETED, recorded_at
        after = {"total": row.total, "done": row.done, "refused": row.refused}
        record_event_of(row, "completed", Cause(SYSTEM, now=recorded_at), after=after)
    row.save(update_fields=["done", "refused", "claimed_until", "advanced_at", "status", "finished_at"])
    return row


def find_bulk_action(bulk_action_ulid: str) -> BulkAction:
    """Return a bulk action with its organization.

    Raises:
        NotFound: It does not exist.
    """
    row = BulkAction.objects.select_related("organization").filter(bulk_action_ulid=bulk_action_ulid).first()
    if row is None:
        raise NotFound(NO_BULK_ACTION)
    return row


def _lock(bulk_action_ulid: str) -> BulkAction:
    rows = BulkAction.objects.select_for_update(of=("self",), no_key=True).select_related("organization")
    row = rows.filter(bulk_action_ulid=bulk_action_ulid).first()
    if row is None:
        raise NotFound(NO_BULK_ACTION)
    return row
