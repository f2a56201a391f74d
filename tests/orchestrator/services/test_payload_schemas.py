"""Schemas of organizations for payloads: set, applied at submit and retry, removed, recorded."""

import pytest

from orchestrator.core.cause import Cause
from orchestrator.services import cancellation, payload_schemas, retries
from orchestrator.services import submission as service_submission
from runtime_jobs.errors import Invalid, NotFound
from runtime_jobs.models import OperatorEvent, PayloadSchema
from runtime_jobs.specs import PayloadSpec, configured_policy
from tests.factories import ALICE, OrganizationFactory, ProjectFactory, submission

pytestmark = pytest.mark.django_db
SCHEMA = {"type": "object", "required": ["imageRef"]}


@pytest.fixture
def project():
    return ProjectFactory(organization=OrganizationFactory(slug="acme"))


def set_schema(project, document=SCHEMA, job_type="scan"):
    return payload_schemas.set_payload_schema(
        organization=project.organization, job_type=job_type, document=document, cause=Cause(ALICE)
    )


def submit(project, payload, job_type="scan"):
    spec = PayloadSpec(job_type, payload, timeout_seconds=60)
    return service_submission.submit(
        submission(project, spec), policy=configured_policy(job_type), default_pool="shared-linux", actor=ALICE
    ).job


def test_a_payload_must_match_from_then_on(project):
    submit(project, {})
    set_schema(project)
    with pytest.raises(Invalid) as refused:
        submit(project, {})
    assert refused.value.errors == {"payload": ["#: 'imageRef' is a required property"]}
    assert submit(project, {"imageRef": "nginx"}).state == "queued"


def test_other_types_and_organizations_are_free(project):
    set_schema(project)
    assert submit(project, {}, "export").state == "queued"
    assert submit(ProjectFactory(organization=OrganizationFactory(slug="other")), {}).state == "queued"


def test_a_retry_is_a_new_request(project):
    job = submit(project, {})
    cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=1)
    set_schema(project)
    with pytest.raises(Invalid):
        retries.retry(job_ulid=job.job_ulid, actor=ALICE, reason="again")


def test_each_change_is_a_version_and_an_event_of_the_tenant(project):
    assert [set_schema(project).version, set_schema(project, {}).version] == [1, 2]
    payload_schemas.remove_payload_schema(organization=project.organization, job_type="scan", cause=Cause(ALICE))
    assert not PayloadSchema.objects.exists()
    events = OperatorEvent.objects.order_by("pk").values_list("action", "org_slug", "job_type")
    assert list(events) == [(f"payload_schema.{name}", "acme", "scan") for name in ("set", "set", "removed")]
    with pytest.raises(NotFound):
        payload_schemas.remove_payload_schema(organization=project.organization, job_type="scan", cause=Cause(ALICE))


@pytest.mark.parametrize(("document", "job_type"), [({"pattern": "x"}, "scan"), ({}, "runtime")])
def test_what_is_not_accepted_changes_nothing(project, document, job_type):
    with pytest.raises(Invalid):
        set_schema(project, document, job_type)
    assert not PayloadSchema.objects.exists()
    assert not OperatorEvent.objects.exists()
