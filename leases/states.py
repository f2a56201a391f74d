"""The states of a lease. Data only."""

from django.db.models import TextChoices


class LeaseState(TextChoices):
    """The state of a lease."""

    GRANTED = "granted"  # to be acknowledged within its window
    ACTIVE = "active"
    COMPLETED = "completed"  # its worker reported the result
    CANCELED = "canceled"  # its worker acknowledged the cancel
    RELEASED = "released"  # returned without execution
    EXPIRED = "expired"  # active, without a heartbeat until its expiry
    REVOKED = "revoked"  # withdrawn, or never acknowledged


OPEN = (LeaseState.GRANTED, LeaseState.ACTIVE)
ENDED_BY_WORKER = (LeaseState.COMPLETED, LeaseState.CANCELED, LeaseState.RELEASED)

# The reason in the answer to a stale worker, by the final state of its lease.
STALE_REASONS: dict[str, str] = {
    LeaseState.COMPLETED: "lease_ended",
    LeaseState.CANCELED: "lease_ended",
    LeaseState.RELEASED: "lease_ended",
    LeaseState.EXPIRED: "lease_expired",
    LeaseState.REVOKED: "lease_revoked",
}
