"""Determines what a worker offers with one claim: registered labels, and capabilities of its machine."""

from collections.abc import Sequence

from workers.registry.models import Worker


def offer_of(
    worker: Worker, *, labels: Sequence[str] | None, capabilities: dict[str, bool] | None
) -> tuple[frozenset[str], str]:
    """Return labels and capabilities in one set, and the isolation level.

    Args:
        worker: The worker that claims.
        labels: Labels of the claim, of which the registered ones count; None for all that are registered.
        capabilities: Capabilities of the claim, of which the true ones count: they are facts about the machine, which
            an operator knows less well. None for all that are registered.
    """
    able = set(worker.capabilities) if capabilities is None else {name for name, has in capabilities.items() if has}
    worn = set(worker.labels) if labels is None else set(labels) & set(worker.labels)
    return frozenset(able | worn), _isolation(able)


def _isolation(able: set[str]) -> str:
    if "namespaces" in able:
        return "namespaces"
    return "restricted" if "restricted" in able else "none"
