"""Versions of packs: registered once, never changed, and required at the admission of pack runs."""

from collections.abc import Mapping
from typing import Any

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_event_of
from orchestrator.core.unit_of_work import UnitOfWork, operation
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, PayloadDigestMismatch, ResourceConflict
from runtime_jobs.models import Organization, PackVersion
from runtime_jobs.specs import packs, public_digest


@operation
def register_pack_version(
    _: UnitOfWork,
    *,
    organization: Organization,
    pack_id: str,
    version: str,
    plan: Mapping[str, Any],
    cause: Cause,
) -> tuple[PackVersion, bool]:
    """Register a version of a pack. The same plan again changes nothing.

    Args:
        pack_id: The valid name of the pack.
        version: The valid name of the version.
        plan: The plan as the client sent it. Its members have the right types.

    Returns:
        The version, and whether it is new.

    Raises:
        Invalid: The plan is too large, or its variables or inputs contradict one another.
        ResourceConflict: The version exists with another plan.
    """
    if errors := packs.plan_errors(plan):
        raise Invalid(errors)
    created_at, digest = cause.now or database_now(), packs.plan_hash(plan)
    Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)  # of two registrations one is later
    named = {"organization": organization, "pack_id": pack_id, "version": version}
    row = PackVersion.objects.select_related("organization").filter(**named).first()
    if row is not None:
        if row.plan_hash != digest:
            raise ResourceConflict(
                f"The version {version} of the pack {pack_id} has the plan {public_digest(row.plan_hash)}. A version "
                "never changes: register the other plan under another version."
            )
        return row, False
    row = PackVersion(
        **named, plan=dict(plan), plan_hash=digest, created_by=str(cause.actor)[:200], created_at=created_at
    )
    row.save(force_insert=True)
    record_event_of(row, "registered", cause.at(created_at), after={"plan_hash": public_digest(digest)})
    return row, True


def require_pack(organization: Organization, payload: Mapping[str, Any]) -> PackVersion:
    """Return the version of the pack that the payload of a pack run names.

    Raises:
        Invalid: The payload names no version, or one that is not registered, or has other inputs than the plan.
        PayloadDigestMismatch: The version has another plan than the payload says.
    """
    if errors := packs.reference_errors(payload):
        raise Invalid({"payload": errors}, "The payload is not that of a pack run.")
    pack_id, version = payload[packs.ID], payload[packs.VERSION]
    row = PackVersion.objects.filter(organization=organization, pack_id=pack_id, version=version).first()
    if row is None:
        message = f"The version {version} of the pack {pack_id} is not registered."
        raise Invalid({"payload": [f"{packs.VERSION}: {message} Register it first."]}, message)
    digest = public_digest(row.plan_hash)
    if payload.get(packs.HASH) not in {None, digest}:
        raise PayloadDigestMismatch(
            f"payload.{packs.HASH}: the version {version} of the pack {pack_id} has the plan {digest}."
        )
    if errors := packs.input_errors(row.plan, payload):
        raise Invalid({"payload": errors}, "The inputs are not those that the pack declares.")
    return row
