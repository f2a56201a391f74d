"""Priorities: numbers, higher goes first, with the names under which people know them."""

PRIORITIES = {
    "unclaimed": 0,
    "low": 50,
    "free": 100,
    "normal": 150,
    "team": 200,
    "high": 250,
    "enterprise": 300,
    "emergency": 400,  # skips the queue, within a limit of its own
}
EMERGENCY = PRIORITIES["emergency"]


def priority_name(priority: int) -> str:
    """Return the name, or the number in words where it has none."""
    return next((name for name, number in PRIORITIES.items() if number == priority), str(priority))
