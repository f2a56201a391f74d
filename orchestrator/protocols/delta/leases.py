"""A lease for a runner: over HTTP (transport B), or as the file that the real runner is started with."""

import shlex
from collections.abc import Sequence
from typing import Any

from leases.scheduling.claims import Offer
from orchestrator import services
from orchestrator.http.auth.authentication import touch_last_seen
from orchestrator.protocols.delta import wire
from orchestrator.services import Claimed
from orchestrator.services.idempotency import IdempotentRequest
from runtime_jobs.specs import STEPS
from workers.models import Worker
from workers.registry.matching import offer_of


def claim_for_runner(
    worker: Worker, *, capabilities: Sequence[str] | None = None, idempotency: IdempotentRequest | None = None
) -> Claimed | None:
    """Claim the next job of type `steps` for this worker, to be acknowledged within its window; None: no work for it.

    `capabilities`: the runner's tags. They only narrow what is registered. The worker is alive: `manage.py grantlease`
    claims without a request that would have recorded it. Raises IdempotencyConflict."""
    touch_last_seen(worker)
    return services.claim(worker=worker, offer=_offer(worker, capabilities), acknowledge=True, idempotency=idempotency)


def _offer(worker: Worker, tags: Sequence[str] | None) -> Offer:
    able = None if tags is None else {name: name in tags for name in worker.capabilities}
    offered, isolation = offer_of(worker, labels=tags, capabilities=able)
    return Offer(worker.worker_id, worker.pool.slug, (STEPS,), offered, isolation)


def lease_granted(claimed: Claimed) -> dict[str, Any]:
    """The message. A job that belongs to no run is its own."""
    job = claimed.job
    run_id = job.batch.batch_ulid if job.batch else job.root_job_ulid
    return wire.granted(claimed.lease, job, run_id=run_id)


def as_single_step(message: dict[str, Any]) -> dict[str, Any]:
    """The same with all of its job in one step: the real runner executes the first step only, ignores `workdir` and
    `env`, and would report a success of work that it has not done."""
    spec = message["job_spec"]
    if len(spec["steps"]) == 1 and not spec["env"] and spec["workdir"] == ".":
        return message
    lines = [f"cd {shlex.quote(spec['workdir'])}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in spec["env"].items()]
    lines += [f"sh -c {shlex.quote(step)}" for step in spec["steps"]]
    return message | {"job_spec": spec | {"steps": [" &&\n".join(lines)]}}
