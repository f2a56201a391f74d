"""Applies bulk actions, some targets at a time, in the dispatcher process.

A claim is a time in the row, not a lock: each operation is a transaction of its own. A dispatcher that is killed leaves
targets that were changed and not recorded. The next dispatcher applies the operation to them again, without effect.
"""

import logging
import time
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q

from orchestrator.bulk_actions.actions import ACTIONS, BulkActionKind
from orchestrator.bulk_actions.models import MAX_DETAIL_LENGTH, BulkAction, BulkStatus, BulkTarget, TargetOutcome
from orchestrator.bulk_actions.operations import TargetResult, record_bulk_progress
from runtime_jobs.db_errors import is_connection_lost
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import LifecycleError

log = logging.getLogger(__name__)

TARGETS: Final = 50  # that are applied under one claim
SECONDS: Final = 5.0  # after which no further target is begun under a claim
CLAIM_TIME: Final = timedelta(seconds=60)


def advance_bulk_action(*, now: datetime | None = None) -> BulkAction | None:
    """Apply the next targets of the action that waits longest.

    Args:
        now: The present; by default the time of the database.

    Returns:
        The action, or None if none is open or other dispatchers have all of them.
    """
    action = _claim(now)
    if action is None:
        return None
    results = [] if action.status == BulkStatus.ABORTING else _apply(action)
    return record_bulk_progress(bulk_action_ulid=action.bulk_action_ulid, results=results, now=now)


def _claim(now: datetime | None) -> BulkAction | None:
    with transaction.atomic():
        present = now or database_now()
        is_free = Q(claimed_until=None) | Q(claimed_until__lte=present)
        rows = BulkAction.objects.select_for_update(of=("self",), no_key=True, skip_locked=True)
        open_rows = rows.filter(is_free, finished_at=None).order_by("advanced_at", "id")
        # Without a time of progress an action has not begun: those first.
        action = open_rows.filter(advanced_at=None).first() or open_rows.first()
        if action is None:
            return None
        action.claimed_until = present + CLAIM_TIME
        if action.status == BulkStatus.PENDING:
            action.status, action.started_at = BulkStatus.RUNNING, present
        action.save(update_fields=["claimed_until", "status", "started_at"])
        return action


def _apply(action: BulkAction) -> list[TargetResult]:
    kind = ACTIONS[action.action]
    until = time.monotonic() + SECONDS
    pending = BulkTarget.objects.filter(bulk_action=action, outcome=TargetOutcome.PENDING).order_by("id")
    results: list[TargetResult] = []
    for target in pending[:TARGETS]:
        if results and time.monotonic() >= until:
            break
        results.append(_apply_to(kind, action, target))
    return results


def _apply_to(kind: BulkActionKind, action: BulkAction, target: BulkTarget) -> TargetResult:
    try:
        kind.apply(action, target.subject_ulid)
    except LifecycleError as refusal:
        return TargetResult(target.pk, refusal.code, refusal.message[:MAX_DETAIL_LENGTH])
    except Exception as error:
        if is_connection_lost(error):
            raise
        # One target that fails each time must not hold up the others, nor the actions of other organizations.
        log.exception("%s of %s failed", kind.name, target.subject_ulid)
        return TargetResult(target.pk, "internal_error", "An error of the server. The log of the dispatcher has it.")
    return TargetResult(target.pk)
