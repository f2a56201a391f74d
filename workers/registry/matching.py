"""What a worker offers with one claim: labels that an operator has registered, and what its machine can do."""

from collections.abc import Sequence

from workers.registry.models import Worker


def offer_of(
    worker: Worker, *, labels: Sequence[str] | None, capabilities: dict[str, bool] | None
) -> tuple[frozenset[str], str]:
    """Labels and capabilities in one set, and the isolation level.

    Nothing sent means what is registered. Labels sent: those of them that are registered. Capabilities sent: those
    that are true; they are facts about the machine, which knows them better than its operator."""
    able = set(worker.capabilities) if capabilities is None else {name for name, has in capabilities.items() if has}
    worn = set(worker.labels) if labels is None else set(labels) & set(worker.labels)
    return frozenset(able | worn), _isolation(able)


def _isolation(able: set[str]) -> str:
    if "namespaces" in able:
        return "namespaces"
    return "restricted" if "restricted" in able else "none"
