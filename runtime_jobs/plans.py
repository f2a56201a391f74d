"""The plans of the four tiers of document 002. A migration creates those that are missing; operators edit them."""

from typing import Any, Final

from runtime_jobs.models import Plan
from runtime_jobs.priorities import PRIORITIES

ENTERPRISE: Final = "enterprise"
TEAM: Final = "team"
FREE: Final = "free"
UNCLAIMED: Final = "unclaimed"  # of organizations without an owner

UNLIMITED_SECONDS: Final = 2**31 - 1
_HOUR: Final = 3600

TIERS: Final[dict[str, dict[str, Any]]] = {
    ENTERPRISE: {"max_timeout_seconds": UNLIMITED_SECONDS, "default_timeout_seconds": _HOUR},
    TEAM: {"max_timeout_seconds": UNLIMITED_SECONDS, "default_timeout_seconds": _HOUR},
    FREE: {"max_timeout_seconds": 300, "default_timeout_seconds": 300, "max_active": 1},
    UNCLAIMED: {"max_timeout_seconds": 60, "default_timeout_seconds": 60, "one_per_address": True},
}


def plan_of_tier(tier: str) -> Plan:
    """Return the plan of a tier, as operators have edited it. It is created if it was deleted.

    Args:
        tier: A key of `TIERS`.
    """
    values = TIERS[tier] | {"priority": PRIORITIES[tier]}
    return Plan.objects.get_or_create(name=tier, defaults=values)[0]
