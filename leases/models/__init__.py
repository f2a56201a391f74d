"""Models of leases, lanes, limits, breakers and submit quotas."""

from leases.models.breakers import Breaker, BreakerState
from leases.models.lanes import Lane, LaneGeneration, LaneHead, LaneProfile, LaneQueue, LaneShare, QueueHead
from leases.models.lease import Lease
from leases.models.limits import Limit, LimitKind, LimitScope, LimitSlot
from leases.models.quotas import SubmitQuota

__all__ = [
    "Breaker",
    "BreakerState",
    "Lane",
    "LaneGeneration",
    "LaneHead",
    "LaneProfile",
    "LaneQueue",
    "LaneShare",
    "Lease",
    "Limit",
    "LimitKind",
    "LimitScope",
    "LimitSlot",
    "QueueHead",
    "SubmitQuota",
]
