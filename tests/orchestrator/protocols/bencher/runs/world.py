"""People, projects, hardware specs and runs for the tests of `/v0/run` and of what it creates."""

from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model

from runtime_jobs.identifiers import public_id_of
from runtime_jobs.models import Job, MemberRole, Membership, Organization, Project
from runtime_jobs.plans import plan_of_tier
from tests.api_client import Caller
from tests.factories import HardwareSpecFactory, personal_key
from tests.orchestrator.protocols.bencher.conftest import refused as refused_call
from workers.models import HardwareSpec

DIGEST = "sha256:" + "0123456789abcdef" * 4
TIMES = {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:01:00Z"}
BMF = '{"fibonacci": {"latency": {"value": 12.5}}}'


def new_spec(name: str = "Two cores", **columns: Any) -> HardwareSpec:
    return HardwareSpecFactory(name=name, slug=name.lower().replace(" ", "-"), **columns)


def new_person(name: str, *organizations: Organization, **columns: Any) -> Any:
    """A user with `caller`, a client that sends the user's personal key."""
    user = get_user_model().objects.create_user(name, **columns)
    for organization in organizations:
        Membership.objects.create(user=user, organization=organization, role=MemberRole.OPERATOR)
    user.caller = Caller(personal_key(user))
    return user


def new_project(slug: str, tier: str = "team", **columns: Any) -> Project:
    organization = Organization.objects.create(slug=f"org-of-{slug}", plan=plan_of_tier(tier))
    return Project.objects.create(organization=organization, slug=slug, **columns)


def job_body(image: str = f"adapter@{DIGEST}", **job: Any) -> dict[str, Any]:
    """A run with a job, in the form of Bencher's command line."""
    return {"branch": "main", **TIMES, "results": [], "job": {"image": image, **job}}


def document_body(**members: Any) -> dict[str, Any]:
    """A run with a job, in the form of document 002."""
    return {"project": "adapter", "branch": "main", "image": DIGEST, "spec": "two-cores"} | members


def direct_body(*results: str, **members: Any) -> dict[str, Any]:
    """A run with results."""
    return {"project": "adapter", "branch": "main", "testbed": "laptop", **TIMES, "results": list(results)} | members


def post_run(caller: Caller, body: dict[str, Any], **headers: str) -> Any:
    return caller.post("/v0/run", body, **headers)


def accepted(caller: Caller, body: dict[str, Any], **headers: str) -> Any:
    """Send the run, and return its report."""
    answer = post_run(caller, body, **headers)
    assert answer.status_code == 201, answer.content
    return answer.json()


def job_of(caller: Caller, body: dict[str, Any], **headers: str) -> Job:
    """Send the run, and return its job."""
    return Job.objects.get(job_ulid=public_id_of("rtj", UUID(accepted(caller, body, **headers)["job"])))


def refused(call: Any, status: int, *words: str) -> str:
    """Make the call, expect this refusal, and that every row is as before. Returns the message."""
    message = refused_call(call, status)
    assert [word for word in words if word not in message] == [], message
    return message
