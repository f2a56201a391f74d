"""The states of a lease. Data only."""

from django.db.models import TextChoices


class LeaseState(TextChoices):
    GRANTED = "granted"  # to be acknowledged within its window
    ACTIVE = "active"
    COMPLETED = "completed"  # its worker told the end
    CANCELED = "canceled"  # its worker acknowledged the cancel
    RELEASED = "released"  # given back unexecuted
    EXPIRED = "expired"  # active and silent past its expiry
    REVOKED = "revoked"  # taken away, or never acknowledged


OPEN = (LeaseState.GRANTED, LeaseState.ACTIVE)
ENDED_BY_WORKER = (LeaseState.COMPLETED, LeaseState.CANCELED, LeaseState.RELEASED)

# What a stale holder is told, by the state its lease ended in (domain.md: the fence).
STALE_REASONS: dict[str, str] = {
    LeaseState.COMPLETED: "lease_ended",
    LeaseState.CANCELED: "lease_ended",
    LeaseState.RELEASED: "lease_ended",
    LeaseState.EXPIRED: "lease_expired",
    LeaseState.REVOKED: "lease_revoked",
}
