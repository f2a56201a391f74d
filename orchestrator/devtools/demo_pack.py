"""Registers a small pack, so that a first pack run needs nothing else. The same inputs give the same artifact."""

from dataclasses import dataclass
from typing import Any, Final

from orchestrator.core.cause import Cause
from orchestrator.services import packs
from runtime_jobs.events import Actor
from runtime_jobs.models import Organization
from runtime_jobs.specs import public_digest

PACK_ID: Final = "greeting"
# Another plan needs another version: an installation that was seeded before has this plan under this version.
PACK_VERSION: Final = "1.0.0"
PLAN: Final[dict[str, Any]] = {
    "name": "greeting",
    "inputs": {"name": {"default": "world"}},
    "steps": ['printf "hello %s\\n" "$INPUT_NAME" | tee greeting.txt'],
    "artifacts": [{"type": "text", "path_glob": "greeting.txt"}],
}


@dataclass(frozen=True)
class PackSeed:
    """The names in the payload of a run of the seeded pack."""

    pack: str
    pack_version: str
    plan_hash: str


def seed_pack(organization: Organization, *, actor: Actor) -> PackSeed:
    """Register the pack. A second call changes nothing."""
    row, _ = packs.register_pack_version(
        organization=organization, pack_id=PACK_ID, version=PACK_VERSION, plan=PLAN, cause=Cause(actor)
    )
    return PackSeed(row.pack_id, row.version, public_digest(row.plan_hash))
