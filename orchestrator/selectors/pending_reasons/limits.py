"""Which limits hold a waiting job back."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from leases.models import LimitKind
from orchestrator.selectors.pending_reasons.messages import limit_message
from orchestrator.selectors.pending_reasons.queries import fetch
from orchestrator.selectors.pending_reasons.reason import ReasonCode, WaitReason
from runtime_jobs.models import Job

CODES: dict[str, ReasonCode] = {
    LimitKind.PAUSE: ReasonCode.POOL_PAUSED,
    LimitKind.BREAKER: ReasonCode.BREAKER_OPEN,
    LimitKind.ORGANIZATION: ReasonCode.ORGANIZATION_LIMIT,
    LimitKind.PLAN: ReasonCode.ORGANIZATION_LIMIT,
    LimitKind.EMERGENCY: ReasonCode.ORGANIZATION_LIMIT,
    LimitKind.CONCURRENCY: ReasonCode.ORGANIZATION_LIMIT,
    LimitKind.SOURCE_ADDRESS: ReasonCode.SOURCE_ADDRESS_LIMIT,
    LimitKind.RATE: ReasonCode.RATE_LIMITED,
    LimitKind.THROTTLE: ReasonCode.RATE_LIMITED,
}


class BlockingLimit(NamedTuple):
    """A limit that lets no job of this lane start now. `eligible_at`: when that changes by itself."""

    lane_id: int
    kind: str
    scope: str
    org_slug: str
    key: str
    max_active: int | None
    per_hour: int | None
    until: datetime | None
    note: str
    set_by: str
    eligible_at: datetime | None

    @property
    def code(self) -> ReasonCode:
        return CODES[self.kind]

    @property
    def facts(self) -> dict[str, Any]:
        """Which limit it is; and who set it until when and why, where a person did that for a while."""
        limit = {name: getattr(self, name) for name in ("kind", "scope", "key", "max_active", "per_hour")}
        by_a_person = {"paused_by": self.set_by, "paused_until": self.until, "note": self.note}
        return {
            "limit": limit,
            **(
                {"next_at": self.eligible_at} if self.code in {ReasonCode.RATE_LIMITED, ReasonCode.BREAKER_OPEN} else {}
            ),
            **(by_a_person if self.code == ReasonCode.POOL_PAUSED else {}),
        }


def limits_of(jobs: Sequence[Job]) -> dict[int, list[BlockingLimit]]:
    """By the lanes' keys, in one query for all jobs. Whether a claim has met the limit already makes no difference."""
    lanes = {job.lane_id for job in jobs if job.lane_id is not None}
    held = defaultdict(list)
    for holding in fetch("limits", BlockingLimit, lanes=list(lanes)) if lanes else []:
        held[holding.lane_id].append(holding)
    return held


def reason_of(holding: BlockingLimit) -> WaitReason:
    return WaitReason(holding.code, limit_message(holding), holding.facts)
