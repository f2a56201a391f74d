"""Runs without authentication, and what happens when a person claims what they made."""

import threading
import time
from uuid import uuid4

import pytest
from django.db import connection

from orchestrator.protocols.bencher.runs import operation
from orchestrator.services.submission import submit
from orchestrator.services.tenants import is_claimed
from runtime_jobs.errors import FeatureNotEnabled
from runtime_jobs.models import Job, Membership, OperatorEvent, Organization, Plan, Project
from runtime_jobs.plans import TIERS, plan_of_tier
from tests.api_client import Caller
from tests.factories import ALICE, POLICY, project_key, submission
from tests.factories import spec as runtime_spec
from tests.orchestrator.protocols.bencher.runs.world import (
    BMF,
    DIGEST,
    accepted,
    direct_body,
    job_body,
    job_of,
    new_person,
    new_project,
    new_spec,
    post_run,
    refused,
)
from tests.orchestrator.services.test_races import together

pytestmark = pytest.mark.django_db


def free_for_all(**job):
    return job_body(f"free-for-all@{DIGEST}", spec="two-cores", **job)


class TestAnonymous:
    def test_it_makes_a_public_project_in_an_organization_without_an_owner(self, anyone, spec):
        job = job_of(anyone, free_for_all())
        project = Project.objects.get()
        assert (project.public_slug, project.visibility, project.enabled) == ("free-for-all", "public", False)
        assert (project.organization.plan.name, is_claimed(project.organization)) == ("unclaimed", False)
        assert (job.priority, job.trigger_actor) == (0, "anonymous")

    def test_its_reports_show_since_when_it_has_an_owner(self, anyone, spec):
        """The command line asks everyone to claim a project of which `claimed` is null."""
        report = accepted(anyone, free_for_all())
        path = f"/v0/projects/free-for-all/reports/{report['uuid']}"
        assert report["project"]["claimed"] is None
        assert anyone.get(path).json()["project"]["claimed"] is None
        accepted(new_person("mia").caller, free_for_all())
        assert anyone.get(path).json()["project"]["claimed"] is not None
        listed = anyone.get("/v0/projects/free-for-all/reports").json()
        assert all(found["project"]["claimed"] for found in listed)

    def test_the_context_names_project_and_organization(self, anyone, spec):
        context = {"bencher.dev/v0/repo/name": "My Repo"}
        body = direct_body(BMF) | {"context": context}
        del body["project"]
        accepted(anyone, body)
        assert Project.objects.get().public_slug == "my-repo"
        assert Organization.objects.get().name == "My Repo"

    def test_a_second_run_goes_into_the_same_project(self, anyone, spec):
        for _ in range(2):
            accepted(anyone, free_for_all())
        assert (Project.objects.count(), Job.objects.count()) == (1, 2)

    def test_the_slug_of_a_foreign_organization_is_not_taken(self, anyone, spec):
        Organization.objects.create(slug="free-for-all", plan=plan_of_tier("team"))
        accepted(anyone, free_for_all())
        assert Project.objects.get().organization.slug.startswith("free-for-all-")

    def test_an_unclaimed_project_with_an_image_may_not_run_other_job_types(self, anyone, spec):
        """`enabled` and hosted runtime analysis remain decisions of an operator."""
        accepted(anyone, free_for_all())
        given = submission(Project.objects.get(), runtime_spec())
        with pytest.raises(FeatureNotEnabled):
            submit(given, policy=POLICY, default_pool="shared-linux", actor=ALICE)

    def test_an_operators_organization_without_members_is_claimed(self, anyone, spec):
        """Its programs have tokens. Only the plan `unclaimed` opens an organization to everyone."""
        new_project("adapter", "team", visibility="public")
        refused(lambda: post_run(anyone, job_body(spec="two-cores")), 401)

    def test_where_they_are_off_every_one_is_401(self, anyone, spec, settings):
        settings.ANONYMOUS_RUNS = False
        refused(lambda: post_run(anyone, free_for_all()), 401, "no anonymous runs")
        new_project("free-for-all", "unclaimed", visibility="public")
        refused(lambda: post_run(anyone, free_for_all()), 401)

    def test_the_rates_of_an_address_are_limited(self, anyone, spec, settings):
        settings.ANONYMOUS_RUNS_PER_MINUTE = 2
        for _ in range(2):
            accepted(anyone, free_for_all())
        refused(lambda: post_run(anyone, free_for_all()), 429, "per minute")
        assert int(post_run(anyone, free_for_all())["Retry-After"]) in range(1, 61)
        settings.BEHIND_PROXY = True
        accepted(anyone, free_for_all(), **{"X-Forwarded-For": "192.0.2.1"})

    def test_those_of_members_are_not(self, spec, settings):
        settings.ANONYMOUS_RUNS_PER_MINUTE = 1
        project = new_project("adapter")
        mia = new_person("mia", project.organization).caller
        for _ in range(3):
            accepted(mia, job_body(spec="two-cores"))

    def test_a_project_key_is_not_anonymous(self, spec, settings):
        settings.ANONYMOUS_RUNS = False
        project = new_project("adapter")
        accepted(Caller(project_key(project)), job_body(spec="two-cores"))


class TestAuthenticatedInAnUnclaimedProject:
    def test_it_claims_the_organization(self, anyone, stranger, spec):
        waits = job_of(anyone, free_for_all())
        job = job_of(stranger, free_for_all())
        assert job.priority == 100
        waits.refresh_from_db()
        assert waits.priority == 100, "lifted at once"
        assert Membership.objects.get().user.username == "stranger"
        refused(lambda: post_run(anyone, free_for_all()), 401)

    def test_a_refused_run_claims_nothing(self, anyone, stranger, spec):
        accepted(anyone, free_for_all())
        refused(lambda: post_run(stranger, job_body("free-for-all:v1", spec="two-cores")), 400)


@pytest.mark.django_db(transaction=True)
class TestRaces:
    def test_runs_of_a_new_project_at_the_same_time_make_it_once(self):
        new_spec()
        key = str(uuid4())
        bodies = [free_for_all() | ({"idempotency_key": key} if number % 2 else {}) for number in range(6)]
        answers = together(*[lambda body=body: post_run(Caller(), body) for body in bodies])
        assert [answer.status_code for answer in answers] == [201] * 6, [answer.content for answer in answers]
        assert (Project.objects.count(), Organization.objects.count()) == (1, 1)
        assert len({answer.json()["uuid"] for answer in answers[1::2]}) == 1, "one report for the key"
        assert Job.objects.count() == 4

    def test_a_claim_raises_every_job_that_was_submitted_before_it(self, settings):
        new_spec()
        settings.ANONYMOUS_RUNS_PER_MINUTE = 0
        anyone = Caller()
        accepted(anyone, free_for_all())
        project = Project.objects.get()
        stranger = new_person("stranger")
        path = f"/v0/organizations/{project.organization.uuid}/claim"
        answers = together(
            *[lambda: post_run(Caller(), free_for_all()) for _ in range(4)], lambda: stranger.caller.post(path)
        )
        assert answers[-1].status_code == 201, answers[-1].content
        assert {answer.status_code for answer in answers[:-1]} <= {201, 401}
        assert set(Job.objects.values_list("priority", flat=True)) == {100}
        assert OperatorEvent.objects.filter(action="organization.claimed").count() == 1

    def test_the_claim_waits_for_a_run_that_is_about_to_commit(self, monkeypatch):
        """Without the lock of the run, its job would keep priority 0: the claim would not see the job."""
        new_spec()
        accepted(Caller(), free_for_all())
        path = f"/v0/organizations/{Organization.objects.get().slug}/claim"
        stranger = new_person("stranger").caller
        admitted, claimed, plain = threading.Event(), threading.Event(), operation.enqueue_job

        def enqueue_after_the_claim_began(*args, **kwargs):
            admitted.set()
            wait_until(lambda: claimed.is_set() or some_lock_is_awaited())
            return plain(*args, **kwargs)

        def claim():
            assert admitted.wait(60)
            try:
                return stranger.post(path)
            finally:
                claimed.set()

        monkeypatch.setattr(operation, "enqueue_job", enqueue_after_the_claim_began)
        answers = together(lambda: post_run(Caller(), free_for_all()), claim)
        assert [answer.status_code for answer in answers] == [201, 201], [answer.content for answer in answers]
        assert list(Job.objects.values_list("priority", flat=True)) == [100, 100]


def wait_until(is_true) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def some_lock_is_awaited() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        return cursor.fetchone()[0]


def test_the_four_plans_of_the_document():
    rows = {
        name: (
            plan.priority,
            plan.max_timeout_seconds,
            plan.default_timeout_seconds,
            plan.max_active,
            plan.one_per_address,
        )
        for name in TIERS
        for plan in [plan_of_tier(name)]
    }
    unlimited = 2**31 - 1
    assert rows == {
        "enterprise": (300, unlimited, 3600, None, False),
        "team": (200, unlimited, 3600, None, False),
        "free": (100, 300, 300, 1, False),
        "unclaimed": (0, 60, 60, None, True),
    }


def test_a_plan_that_an_operator_has_edited_stays():
    plan_of_tier("free")
    Plan.objects.filter(name="free").update(max_timeout_seconds=77)
    assert plan_of_tier("free").max_timeout_seconds == 77
