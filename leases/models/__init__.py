from leases.models.lanes import Lane, LaneProfile, LaneQueue
from leases.models.lease import Lease
from leases.models.limits import Limit, LimitSlot

__all__ = ["Lane", "LaneProfile", "LaneQueue", "Lease", "Limit", "LimitSlot"]
