"""`POST /v0/organizations/{org}/claim`: the caller owns it, and what waits gets the priority of the plan `free`."""

import pytest

from orchestrator.audit.runner import run_audit
from orchestrator.services import cancellation, priority
from runtime_jobs.models import Job, JobEvent, Membership, OperatorEvent, Organization, Project
from runtime_jobs.plans import plan_of_tier
from tests.api_client import Caller
from tests.factories import api_token, project_key
from tests.orchestrator.protocols.bencher.runs.world import BMF, direct_body, new_person, new_project, refused
from tests.runtime_jobs.test_oci import submitted_oci

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def audited(db):
    yield
    assert [str(finding) for finding in run_audit(chains=True)] == []


@pytest.fixture
def project():
    return new_project("adapter", "unclaimed", visibility="public")


@pytest.fixture
def mia():
    return new_person("mia")


def path(project) -> str:
    return f"/v0/organizations/{project.organization.slug}/claim"


def test_the_caller_becomes_a_member_and_the_plan_free(mia, project):
    answer = mia.caller.post(path(project))
    assert answer.status_code == 201, answer.content
    organization = Organization.objects.get()
    assert (organization.plan.name, Membership.objects.get().user) == ("free", mia)
    body = answer.json()
    assert (body["uuid"], body["slug"]) == (str(organization.uuid), organization.slug)
    assert body["claimed"] is not None
    event = OperatorEvent.objects.get(action="organization.claimed")
    assert (event.actor, event.before, event.after) == (
        "client:mia", {"plan": "unclaimed"}, {"plan": "free", "member": "mia"},
    )  # fmt: skip


def test_the_uuid_names_the_organization_too(mia, project):
    assert mia.caller.post(f"/v0/organizations/{project.organization.uuid}/claim").status_code == 201


def test_pending_jobs_of_priority_0_rise_to_100_and_no_others(mia, project):
    waiting = [submitted_oci(project, timeout_seconds=60) for _ in range(3)]
    elsewhere = submitted_oci(new_project("other", "unclaimed"), timeout_seconds=60)
    canceled = submitted_oci(project, timeout_seconds=60)
    cancellation.cancel(job_ulid=canceled.job_ulid, actor=priority.SYSTEM, deadline_seconds=30)
    raised = submitted_oci(project, timeout_seconds=60)
    priority.prioritize(job_ulid=raised.job_ulid, priority=50, actor=priority.SYSTEM, reason="by hand")
    mia.caller.post(path(project))
    priorities = dict(Job.objects.values_list("job_ulid", "priority"))
    assert [priorities[job.job_ulid] for job in waiting] == [100] * 3
    assert [priorities[job.job_ulid] for job in (elsewhere, canceled, raised)] == [0, 0, 50]
    events = JobEvent.objects.filter(event_type="job.prioritized", job_id=waiting[0].job_ulid)
    assert events.get().payload_json["before"] == 0


def test_more_jobs_than_one_round_rise_at_once(mia, project, monkeypatch):
    limited = priority.raise_queued_priority
    monkeypatch.setattr(
        "orchestrator.services.tenants.raise_queued_priority", lambda organization: limited(organization, limit=2)
    )
    for _ in range(5):
        submitted_oci(project, timeout_seconds=60)
    mia.caller.post(path(project))
    assert set(Job.objects.values_list("priority", flat=True)) == {100}


def test_without_jobs_it_works_too(mia, project):
    assert mia.caller.post(path(project), b"").status_code == 201


def test_what_a_dead_process_left_is_raised_by_the_scheduler(mia, project, monkeypatch):
    from orchestrator.maintenance.queues import sweep_scheduling  # noqa: PLC0415 - reads the settings

    job = submitted_oci(project, timeout_seconds=60)
    monkeypatch.setattr("orchestrator.services.tenants.sync_plan", None)  # the process ends here
    assert mia.caller.post(path(project)).status_code == 201
    job.refresh_from_db()
    assert job.priority == 0
    sweep_scheduling()
    job.refresh_from_db()
    assert job.priority == 100


def test_another_plan_moves_no_waiting_job(mia, project):
    """Document 002: the priority is set at the submit. Only the claim of an organization raises it."""
    from orchestrator.maintenance.queues import sweep_scheduling  # noqa: PLC0415 - reads the settings

    mia.caller.post(path(project))
    job = submitted_oci(project, timeout_seconds=60)
    organization = Organization.objects.get()
    organization.plan = plan_of_tier("enterprise")
    organization.save(update_fields=["plan"])
    for _ in range(2):
        sweep_scheduling()
    assert Job.objects.get(pk=job.pk).priority == 100
    assert submitted_oci(project, timeout_seconds=60).priority == 300


def test_a_repetition_by_the_member_changes_nothing(mia, project):
    first = mia.caller.post(path(project)).json()
    assert mia.caller.post(path(project)).json() == first
    assert (Membership.objects.count(), OperatorEvent.objects.filter(action="organization.claimed").count()) == (1, 1)


def test_a_claimed_organization_is_409_if_it_is_public_and_404_if_not(mia, project):
    mia.caller.post(path(project))
    stranger = new_person("stranger").caller
    refused(lambda: stranger.post(path(project)), 409, "already been claimed")
    private = new_project("private")
    missing = refused(lambda: stranger.post("/v0/organizations/nowhere/claim"), 404)
    assert refused(lambda: stranger.post(path(private)), 404) == missing, "both are answered alike"


def test_an_operators_organization_without_members_is_not_free_for_all(mia):
    project = new_project("ci", "team")
    refused(lambda: mia.caller.post(path(project)), 404)


def arrange(project, what) -> None:
    """Make an operator arrange something with the owner of an organization that has no members."""
    if what == "api_token":
        api_token(project.organization)
    elif what == "project_key":
        project_key(project)
    else:
        Project.objects.create(organization=project.organization, slug="secret")


@pytest.mark.parametrize("what", ["api_token", "project_key", "private_project"])
def test_an_organization_of_programs_on_the_plan_unclaimed_has_an_owner(mia, project, what):
    """Before people could be members, an organization had only tokens and projects."""
    arrange(project, what)
    before = mia.caller.get("/v0/projects/secret/reports").status_code
    refused(lambda: mia.caller.post(path(project)), 409, "already been claimed")
    refused(lambda: mia.caller.post("/v0/run", direct_body(BMF)), 403)
    assert (before, mia.caller.get("/v0/projects/secret/reports").status_code) == (404, 404)
    assert not Membership.objects.exists()


@pytest.mark.parametrize("what", ["api_token", "project_key", "private_project"])
def test_a_private_project_of_such_an_organization_does_not_exist_for_others(mia, project, what):
    arrange(project, what)
    Project.objects.update(visibility="private")
    refused(lambda: mia.caller.post(path(project)), 404)
    refused(lambda: mia.caller.post("/v0/run", direct_body(BMF)), 404)


@pytest.mark.parametrize("what", ["api_token", "project_key", "private_project"])
def test_nobody_submits_anonymous_runs_to_such_an_organization(project, what, settings):
    settings.ANONYMOUS_RUNS = True
    arrange(project, what)
    refused(lambda: Caller().post("/v0/run", direct_body(BMF)), 401, "has an owner")
    Project.objects.update(visibility="private")
    refused(lambda: Caller().post("/v0/run", direct_body(BMF)), 401)


@pytest.mark.parametrize("name", ["No Slug", "a--b", "x" * 65])
def test_a_path_that_is_neither_uuid_nor_slug_is_400(mia, name):
    refused(lambda: mia.caller.post(f"/v0/organizations/{name}/claim"), 400)


def test_only_people_claim(project):
    refused(lambda: Caller().post(path(project)), 400)
    program = Caller(project_key(project))
    refused(lambda: program.post(path(project)), 400)
    refused(lambda: Caller("bencher_user_" + "x" * 30).post(path(project)), 401)


def test_a_plan_free_that_was_deleted_is_created_again(mia, project):
    plan_of_tier("free").delete()
    assert mia.caller.post(path(project)).status_code == 201
    assert Organization.objects.get().plan.name == "free"
