"""The schema: its document is current, and its types are those of the REST API."""

from pathlib import Path

import pytest
from django.core.management import call_command
from graphql import build_schema, is_non_null_type
from rest_framework import serializers

from orchestrator.protocols.stella.dashboard import serializers as dashboard
from orchestrator.protocols.stella.events import serializers as events
from orchestrator.protocols.stella.graph.schema import schema
from orchestrator.protocols.stella.jobs import serializers as jobs
from orchestrator.protocols.stella.quotas import serializers as quotas
from orchestrator.protocols.stella.serializers import SetByOutput
from orchestrator.protocols.stella.sources import serializers as sources

DOCUMENT = Path(__file__).resolve().parents[5] / "docs" / "schema.graphql"
PAIRS = {
    "Author": SetByOutput,
    "PendingReason": jobs.OrchestrationReasonOutput,
    "JobFailure": jobs.OrchestrationFailureOutput,
    "JobIncident": jobs.OrchestrationIncidentOutput,
    "JobAttempt": jobs.OrchestrationAttemptOutput,
    "JobResult": jobs.OrchestrationResultOutput,
    "JobDetail": jobs.OrchestrationJobDetailOutput,
    "EventPayload": events.EventChangeOutput,
    "EventProvenance": events.EventProvenanceOutput,
    "EventIntegrity": events.EventIntegrityOutput,
    "EventEnvelope": events.EventEnvelopeOutput,
    "EmergencyQuota": quotas.EmergencyQuotaOutput,
    "QuotaPriority": quotas.QuotaPriorityOutput,
    "Quota": quotas.TenantQuotaOutput,
    "Source": sources.JobSourceOutput,
    "JobTotals": dashboard.JobTotalsOutput,
    "EndedTotals": dashboard.EndedTotalsOutput,
    "JobTypeTotals": dashboard.JobTypeTotalsOutput,
    "FailureTotals": dashboard.FailureTotalsOutput,
    "RestrictedSource": dashboard.RestrictedSourceOutput,
    "OpenBreaker": dashboard.OpenBreakerOutput,
    "OpenIncident": dashboard.DashboardIncidentOutput,
    "IncidentTotals": dashboard.IncidentTotalsOutput,
    "Dashboard": dashboard.DashboardOutput,
}
FURTHER = {("JobDetail", "events")}  # a page of its own in the REST API
MISSING = {("JobDetail", "replays")}  # the argument `replayOf` of `jobs` has them


def test_the_document_is_current(tmp_path):
    file = tmp_path / "schema.graphql"
    call_command("graphqlschema", file=str(file))
    assert file.read_text() == DOCUMENT.read_text(), "run manage.py graphqlschema --file docs/schema.graphql"
    assert build_schema(DOCUMENT.read_text()).mutation_type is None


@pytest.mark.parametrize("name", PAIRS)
def test_a_type_has_the_members_of_the_rest_api(name):
    fields = schema.core.type_map[name].fields
    rendered = PAIRS[name]().get_fields()
    assert set(fields) == ({*rendered} - {field for kind, field in MISSING if kind == name}) | {
        field for kind, field in FURTHER if kind == name
    }
    for member, field in rendered.items():
        if member in fields and not isinstance(field, serializers.SerializerMethodField):
            may_be_null = field.allow_null or not field.required
            assert is_non_null_type(fields[member].type) is not may_be_null, member


def test_a_job_of_a_list_has_no_large_members():
    job, detail = (schema.core.type_map[name].fields for name in ("Job", "JobDetail"))
    assert set(detail) - set(job) == {"payload", "cursors", "timeoutSeconds", "idempotencyKey", "result"}
    assert {name: str(job[name].type) for name in job} == {name: str(detail[name].type) for name in job}


def test_there_are_no_mutations():
    assert schema.core.mutation_type is None
