"""Which limits hold a waiting job back."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from leases.limits import ALL_TYPES
from leases.models.limits import LimitKind
from orchestrator.reasons.looking import ask
from orchestrator.reasons.reason import Code, Reason, several
from runtime_jobs.models import Job

CODES: dict[str, Code] = {LimitKind.ORGANIZATION: Code.ORGANIZATION_LIMIT}


class Holding(NamedTuple):
    """A limit that lets no job of this lane start now."""

    lane_id: int
    kind: str
    org_slug: str
    key: str
    max_active: int

    @property
    def shown(self) -> dict[str, Any]:
        return {"kind": self.kind, "key": self.key, "max_active": self.max_active}


def limits_of(jobs: Sequence[Job]) -> dict[int, list[Holding]]:
    """By the lanes' keys, in one query for all jobs. Whether a claim has met the limit already makes no difference."""
    lanes = {job.lane_id for job in jobs if job.lane_id is not None}
    held = defaultdict(list)
    for holding in ask("limits", Holding, lanes=list(lanes)) if lanes else []:
        held[holding.lane_id].append(holding)
    return held


def reason_of(holding: Holding) -> Reason:
    return Reason(CODES[holding.kind], _words(holding), {"limit": holding.shown})


def _words(holding: Holding) -> str:
    of_type = "" if holding.key == ALL_TYPES else f" of type {holding.key}"
    return f"{holding.org_slug} may run {several(holding.max_active, 'job')}{of_type} at once, and does."
