"""Creates what a first call of the Bencher API needs: keys of two people, a runner with its key, a hardware spec."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model

from orchestrator.core.cause import Cause
from orchestrator.services import hardware_specs, personal_keys, runners
from runtime_jobs.events import Actor
from runtime_jobs.models import MemberRole, Membership, Organization, PersonalKey
from workers.models import HardwareSpec, Worker, WorkerSpec
from workers.registry.models import WorkerState
from workers.registry.tokens import digest_of

MEMBER = "member"
RUNNER = "demo-runner"
SPEC = "demo-spec"
# Small enough for any machine, and without a sandbox: the runner needs `--danger-allow-no-sandbox`.
HARDWARE = {
    "os": "linux",
    "architecture": "x86_64",
    "sandbox": None,
    "cpu": 1,
    "memory": 1 << 30,
    "disk": 1 << 30,
    "network": False,
}


@dataclass(frozen=True)
class BencherSeed:
    """Holds keys and names of the Bencher API.

    Attributes:
        admin_key: Personal key of a server admin.
        user_key: Personal key of a member of the organization, who is no admin.
        runner: Slug of the runner.
        runner_key: Its key.
        spec: UUID of the hardware spec that the runner provides.
    """

    admin_key: str
    user_key: str
    runner: str
    runner_key: str
    spec: str


def seed_bencher(kept: dict[str, str], organization: Organization, *, admin: Any, actor: Actor) -> BencherSeed:
    """Create what is missing, and replace keys that are not valid any more.

    Args:
        kept: The values of an earlier seed by name.
        organization: The organization of the member.
        admin: The user who is a server admin.
        actor: The operator of the audit events.
    """
    member, _ = get_user_model().objects.get_or_create(username=MEMBER)
    Membership.objects.update_or_create(user=member, organization=organization, defaults={"role": MemberRole.OPERATOR})
    spec = HardwareSpec.objects.filter(slug=SPEC).first() or hardware_specs.create_spec(
        name="Demo spec", slug=SPEC, hardware=HARDWARE, fallback=not _has_fallback(), cause=Cause(actor)
    )
    worker, runner_key = ensure_runner("Demo runner", RUNNER, spec.uuid, key=kept.get("runner_key"), actor=actor)
    return BencherSeed(
        admin_key=_personal_key(admin, kept.get("admin_key"), actor),
        user_key=_personal_key(member, kept.get("user_key"), actor),
        runner=worker.slug,
        runner_key=runner_key,
        spec=str(spec.uuid),
    )


def _has_fallback() -> bool:
    return HardwareSpec.objects.filter(fallback_at__isnull=False).exists()


def ensure_runner(name: str, slug: str, spec: UUID, *, key: str | None, actor: Actor) -> tuple[Worker, str]:
    """Return the runner with that slug, which provides the hardware spec, and its key: the given one if it is valid."""
    worker = Worker.objects.runners().filter(slug=slug).first()
    if worker is not None and not _may_change(worker):
        return worker, key or ""
    cause = Cause(actor)
    if worker is None:
        worker, key = runners.create_runner(name=name, slug=slug, cause=cause)
    elif not key or worker.digest != digest_of(key):
        cause_of_rotation = Cause(actor, "its file has another one")
        worker, key = runners.rotate_runner_key(worker_id=worker.worker_id, cause=cause_of_rotation)
    if not WorkerSpec.objects.filter(worker=worker, spec__uuid=spec).exists():
        runners.add_runner_spec(worker_id=worker.worker_id, spec_uuid=spec, cause=cause)
    return worker, key


def _may_change(worker: Worker) -> bool:
    """Return whether the runner is as the seed made it: an operator has neither archived nor revoked it."""
    return worker.state not in {WorkerState.ARCHIVED, WorkerState.REVOKED}


def _personal_key(user: Any, key: str | None, actor: Actor) -> str:
    valid = PersonalKey.objects.filter(user=user, revoked_at=None, expires_at=None)
    if key and valid.filter(digest=digest_of(key)).exists():
        return key
    return personal_keys.create_personal_key(user=user, name="seed", creator=None, cause=Cause(actor))[1]
