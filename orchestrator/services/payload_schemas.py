"""JSON Schemas of organizations for the payloads of their jobs."""

from typing import Any

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound
from runtime_jobs.models import Organization, PayloadSchema
from runtime_jobs.specs import PAYLOAD_TYPES, PayloadSpec
from runtime_jobs.specs.payload_schema import payload_errors, schema_error


@operation
def set_payload_schema(
    _: UnitOfWork,
    *,
    organization: Organization,
    job_type: str,
    document: dict[str, Any],
    cause: Cause,
) -> PayloadSchema:
    """Set the schema that payloads of one type must match from now on. Jobs that were submitted before stay.

    Args:
        job_type: A type with a payload.
        document: The schema.

    Raises:
        Invalid: The type has no payload, or the schema is not accepted.
    """
    if job_type not in PAYLOAD_TYPES:
        raise Invalid({"job_type": [f"Must be one of: {', '.join(PAYLOAD_TYPES)}."]})
    if problem := schema_error(document):
        raise Invalid({"document": [problem]})
    changed_at = cause.now or database_now()
    Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)  # of two first schemas one is later
    row = PayloadSchema.objects.filter(organization=organization, job_type=job_type).first()
    before = {"version": row.version} if row else None
    if row is None:
        row = PayloadSchema(organization=organization, job_type=job_type, version=0)
    row.document, row.version, row.changed_by, row.changed_at = (
        document,
        row.version + 1,
        str(cause.actor)[:200],
        changed_at,
    )
    row.save()
    record_operator_event(
        "payload_schema.set",
        target=f"payload_schema:{row}"[:200],
        cause=cause.at(changed_at),
        before=before,
        after={"version": row.version},
        org_slug=organization.slug,
        job_type=job_type,
    )
    return row


@operation
def remove_payload_schema(
    _: UnitOfWork,
    *,
    organization: Organization,
    job_type: str,
    cause: Cause,
) -> None:
    """Remove the schema of one type. Payloads of the type have no schema then.

    Raises:
        NotFound: There is no schema.
    """
    rows = PayloadSchema.objects.select_for_update()
    row = rows.filter(organization=organization, job_type=job_type).first()
    if row is None:
        raise NotFound(f"The organization has no schema for payloads of type {job_type[:50]}.")
    target, version = f"payload_schema:{row}"[:200], row.version
    row.delete()
    record_operator_event(
        "payload_schema.removed",
        target=target,
        cause=cause,
        before={"version": version},
        org_slug=organization.slug,
        job_type=job_type,
    )


def require_matching_payload(organization: Organization, spec: PayloadSpec) -> None:
    """Check a payload against the schema of its organization, if it has one for the type.

    Raises:
        Invalid: The payload does not match.
    """
    rows = PayloadSchema.objects.filter(organization=organization, job_type=spec.job_type)
    document = rows.values_list("document", flat=True).first()
    if document is not None and (errors := payload_errors(document, spec.payload)):
        raise Invalid({"payload": errors}, f"The payload does not match the schema for jobs of type {spec.job_type}.")
