"""Claims jobs for a runner: over HTTP (transport B), or for the file that starts the real runner (`grantlease`)."""

import shlex
from collections.abc import Sequence
from typing import Any

from leases.scheduling.claims import Offer
from orchestrator.core.idempotency import IdempotentRequest
from orchestrator.http.auth.authentication import touch_last_seen
from orchestrator.protocols.delta.runners import wire
from orchestrator.services import claiming
from orchestrator.services.claiming import Claimed
from runtime_jobs.specs import STEPS
from workers.models import Worker
from workers.registry.matching import offer_of


def claim_for_runner(
    worker: Worker, *, capabilities: Sequence[str] | None = None, idempotency: IdempotentRequest | None = None
) -> Claimed | None:
    """Claim the next job of type `steps`. The runner must acknowledge it.

    The worker counts as online afterwards: `manage.py grantlease` claims without a request that would record it.

    Args:
        worker: The worker that the runner acts for.
        capabilities: Tags of the runner, which narrow the registered capabilities. None means all of them.
        idempotency: Idempotency key of the request.

    Returns:
        The lease with its job, or None if there is no matching job.

    Raises:
        IdempotencyConflict: The key was used with another request.
    """
    touch_last_seen(worker)
    return claiming.claim(worker=worker, offer=_offer(worker, capabilities), acknowledge=True, idempotency=idempotency)


def _offer(worker: Worker, tags: Sequence[str] | None) -> Offer:
    capabilities = None if tags is None else {name: name in tags for name in worker.capabilities}
    offered, isolation = offer_of(worker, labels=tags, capabilities=capabilities)
    return Offer(worker.worker_id, worker.pool.slug, (STEPS,), offered, isolation)


def lease_granted(claimed: Claimed) -> dict[str, Any]:
    """Return the message LeaseGranted. A job that belongs to no run is reported as its own run."""
    job = claimed.job
    run_id = job.batch.batch_ulid if job.batch else job.root_job_ulid
    return wire.lease_granted(claimed.lease, job, run_id=run_id)


def as_single_step(message: dict[str, Any]) -> dict[str, Any]:
    """Return LeaseGranted with all steps in one.

    The real runner executes only the first step, ignores `workdir` and `env`, and would report a success for steps
    that it has not run.
    """
    spec = message["job_spec"]
    if len(spec["steps"]) == 1 and not spec["env"] and spec["workdir"] == ".":
        return message
    lines = [f"cd {shlex.quote(spec['workdir'])}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in spec["env"].items()]
    lines += [f"sh -c {shlex.quote(step)}" for step in spec["steps"]]
    return message | {"job_spec": spec | {"steps": [" &&\n".join(lines)]}}
