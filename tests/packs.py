"""A registered version of a pack for tests, and payloads of its runs."""

from typing import Any

from orchestrator.core.cause import Cause
from orchestrator.services import packs
from runtime_jobs.models import Organization, PackVersion
from runtime_jobs.specs import public_digest
from tests.factories import ALICE

PACK, VERSION = "vuln-scan-and-report", "1.2.0"
PLAN: dict[str, Any] = {
    "name": "scan an image",
    "inputs": {"imageRef": {"required": True}, "level": {"default": "high"}},
    "steps": ['printf "%s %s" "$INPUT_IMAGEREF" "$INPUT_LEVEL" > report.txt'],
    "artifacts": [{"path_glob": "report.txt"}],
}
# A pack without inputs, for tests of anything else.
SIMPLE_PLAN: dict[str, Any] = {"steps": ["true"]}


def register(organization: Organization, plan: Any = PLAN, pack_id: str = PACK, version: str = VERSION) -> PackVersion:
    return packs.register_pack_version(
        organization=organization, pack_id=pack_id, version=version, plan=plan, cause=Cause(ALICE)
    )[0]


def payload_of(row: PackVersion, **changes: Any) -> dict[str, Any]:
    """The payload of section 5.1 for this version. A change to None removes the member."""
    payload = {
        "packId": row.pack_id,
        "packVersion": row.version,
        "planHash": public_digest(row.plan_hash),
        "inputs": {"imageRef": "nginx:latest"} if row.plan.get("inputs") else {},
        "artifacts": [],
        "logChannel": "sse:/runs/{runId}/logs",
        "heartbeatCadence": 30,
    } | changes
    return {name: value for name, value in payload.items() if value is not None}


def simple_payload(organization: Organization) -> dict[str, Any]:
    """The payload of a run of the pack without inputs, which is registered."""
    return payload_of(register(organization, SIMPLE_PLAN, "simple"))
