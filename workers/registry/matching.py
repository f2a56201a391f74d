"""Determines what a worker offers with one claim: registered labels, capabilities of its machine, hardware specs."""

from collections.abc import Sequence

from django.conf import settings

from runtime_jobs.prepared_queries import fetch_all
from runtime_jobs.specs.oci import spec_label
from workers.registry.models import SpecSandbox, Worker

# Each attempt to claim reads them.
_SPECS_OF_WORKER = """
    SELECT spec.uuid, spec.sandbox
      FROM workers_hardwarespec spec JOIN workers_workerspec provided ON provided.spec_id = spec.id
     WHERE provided.worker_id = %s ORDER BY spec.uuid
"""


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
    specs = spec_labels(worker) if worker.pool.slug == settings.RUNNER_POOL else []
    return frozenset(able | worn | set(specs)), _isolation(able)


def spec_labels(worker: Worker) -> list[str]:
    """Return one label for each hardware spec that the worker provides, in order. Each call reads them anew."""
    return runner_offer(worker)[0]


def runner_offer(worker: Worker) -> tuple[list[str], str]:
    """Return the labels of a runner's hardware specs, in order, and its isolation level, by one query.

    A runner reports no capabilities: the operator who associates a spec vouches for the machine. Archived specs count.
    """
    specs = fetch_all(_SPECS_OF_WORKER, [worker.pk])
    has_microvm = any(sandbox == SpecSandbox.FIRECRACKER for _, sandbox in specs)
    return [spec_label(uuid) for uuid, _ in specs], "microvm" if has_microvm else "none"


def _isolation(able: set[str]) -> str:
    return next((level for level in ("microvm", "namespaces", "restricted") if level in able), "none")
