"""Submit quotas as each protocol answers them: 429, `Retry-After`, a stable code and the numbers."""

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from leases.models import SubmitQuota
from orchestrator.audit.runner import run_audit
from orchestrator.protocols.github.models import WebhookDelivery
from orchestrator.services import bulk_submit, claiming
from orchestrator.services.submission import Submission, submit
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, Organization, Plan
from tests.api_client import Caller, problem_of
from tests.factories import (
    ALICE,
    COMMIT,
    POLICY,
    SUBMIT_ANY_BODY,
    SUBMIT_BODY,
    OrganizationFactory,
    PlanFactory,
    PoolFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    offer,
    spec,
    submission,
)
from tests.orchestrator.protocols.github.conftest import deliver, new_secret
from workers.models import Pool

pytestmark = pytest.mark.django_db
NATIVE = "/v1/runtime/jobs"
RUNS = "/api/v1/runs"


@pytest.fixture
def project(db):
    plan = PlanFactory(name="small", max_queued=2, submits_per_minute=None)
    return ProjectFactory(
        organization=OrganizationFactory(slug="sandtrace", plan=plan),
        configured_command=["pnpm", "install"],
        push_enabled=True,
    )


@pytest.fixture
def alice(project) -> Caller:
    return Caller(api_token(project.organization))


def fill(alice, number: int = 2) -> list[str]:
    answers = [alice.post(NATIVE, SUBMIT_BODY) for _ in range(number)]
    assert {answer.status_code for answer in answers} == {201}, answers[-1].content
    return [answer.json()["job_id"] for answer in answers]


def exceeded(answer) -> dict:
    document = problem_of(answer)
    assert (answer.status_code, answer["Retry-After"]) == (429, str(document["retry_after"])), document
    return document


def queued() -> int:
    return Job.objects.filter(state="queued").count()


@pytest.mark.parametrize(("path", "body"), [(NATIVE, SUBMIT_BODY), ("/v1/jobs", SUBMIT_ANY_BODY)])
def test_a_submit_beyond_the_queue_gets_the_numbers(alice, path, body):
    fill(alice)
    document = exceeded(alice.post(path, body))
    assert {name: document[name] for name in ("code", "limit", "current")} == {
        "code": "queue_full",
        "limit": 2,
        "current": 2,
    }
    assert queued() == 2


def test_a_submit_beyond_the_rate_gets_the_numbers(alice):
    Plan.objects.update(max_queued=None, submits_per_minute=2, submit_burst=2)
    fill(alice)
    document = exceeded(alice.post(NATIVE, SUBMIT_BODY))
    assert {name: document[name] for name in ("code", "limit", "burst", "current")} == {
        "code": "submit_rate_exceeded",
        "limit": 2,
        "burst": 2,
        "current": 2,
    }
    assert 1 <= document["retry_after"] <= 30


def test_a_repeat_with_its_key_gets_the_first_answer_also_when_the_queue_is_full(alice):
    key = {"Idempotency-Key": "k"}
    first = alice.post(NATIVE, SUBMIT_BODY, **key)
    fill(alice, 1)
    again = alice.post(NATIVE, SUBMIT_BODY, **key)
    assert (again.status_code, again.json()["job_id"]) == (201, first.json()["job_id"])


def test_a_refusal_is_not_kept_under_the_key(alice):
    first, _ = fill(alice)
    for path, body in ((NATIVE, SUBMIT_BODY), (f"{NATIVE}/bulk", {"jobs": [SUBMIT_BODY]})):
        exceeded(alice.post(path, body, **{"Idempotency-Key": "k"}))
    alice.post(f"{NATIVE}/{first}/cancel")
    again = alice.post(f"{NATIVE}/bulk", {"jobs": [SUBMIT_BODY]}, **{"Idempotency-Key": "k"})
    assert again.json()["results"][0]["status"] == 201


def test_of_a_bulk_what_is_too_much_is_refused_one_by_one(alice):
    results = alice.post(f"{NATIVE}/bulk", {"jobs": [SUBMIT_BODY] * 4}).json()["results"]
    assert [one["status"] for one in results] == [201, 201, 429, 429]
    error = results[3]["error"]
    assert (error["code"], error["limit"], error["retry_after"]) == ("queue_full", 2, 1)
    assert exceeded(alice.post(f"{NATIVE}/bulk", {"jobs": [SUBMIT_BODY] * 2}))["code"] == "queue_full"


def test_a_retry_counts(alice):
    first, _ = fill(alice)
    alice.post(f"{NATIVE}/{first}/cancel")
    fill(alice, 1)
    assert exceeded(alice.post(f"{NATIVE}/{first}/retry", {"reason": "again"}))["code"] == "queue_full"


def test_a_run_of_document_001_is_refused_in_its_envelope(alice):
    fill(alice, 1)
    steps = [{"name": name, "steps": ["make"]} for name in ("build", "lint")]
    body = {"repo_id": "cc-consulting-nv/web", "ref": "refs/heads/main", "commit_sha": COMMIT, "jobs": steps}
    answer = alice.post(RUNS, body)
    details = answer.json()["error"]["details"]
    assert (answer.status_code, answer["Retry-After"]) == (429, "1")
    assert (details["code"], details["limit"], details["retry_after"]) == ("queue_full", 2, 1)
    assert queued() == 1
    started = alice.post(RUNS, body | {"jobs": steps[:1]})
    assert started.status_code == 201
    again = alice.post(f"{RUNS}/{started.json()['run_id']}/rerun", {}, **{"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["error"]["details"]["code"]) == (429, "queue_full")


def test_a_refused_webhook_is_kept_answered_429_and_can_be_redelivered(project, alice):
    secret = new_secret(project)
    first, _ = fill(alice)
    sent = {"changes": {"X-GitHub-Delivery": "7b4f0e9c-0000-4000-8000-000000000001"}}
    answer = deliver("push.branch", secret, **sent)
    problem = problem_of(answer)
    assert (answer.status_code, answer["Retry-After"]) == (429, "1")
    assert [problem[name] for name in ("code", "limit", "current", "retry_after")] == ["queue_full", 2, 2, 1]
    row = WebhookDelivery.objects.get()
    assert (row.outcome, row.job_ulid, row.reason.partition(":")[0]) == ("refused", None, "queue_full")
    alice.post(f"{NATIVE}/{first}/cancel")
    assert deliver("push.branch", secret, **sent).status_code == 201
    row = WebhookDelivery.objects.get()
    assert (row.outcome, Job.objects.get(job_ulid=row.job_ulid).state) == ("created", "queued")
    assert run_audit() == []


def test_the_quota_is_shown_to_the_organization_and_to_no_other(alice):
    fill(alice)
    OrganizationFactory(slug="other")
    SubmitQuota.objects.update(recount_at=database_now() + timedelta(minutes=1))
    shown = alice.get("/v1/quotas").json()["results"]
    assert [0 < one.pop("retry_after") <= 60 for one in shown] == [True]
    assert shown == [
        {
            "org_slug": "sandtrace",
            "plan": "small",
            "queued": 2,
            "max_queued": 2,
            "submits_per_minute": None,
            "submit_burst": None,
            "refused": "queue_full",
        }
    ]
    reader = Caller(api_token(Organization.objects.get(slug="sandtrace"), scopes=("jobs:read",)))
    assert problem_of(reader.get("/v1/quotas"))["code"] == "insufficient_scope"


def test_the_admin_shows_limits_of_the_plan_and_their_use(alice, project):
    fill(alice)
    get_user_model().objects.create_superuser("olga", password="x")
    olga = Client()
    olga.login(username="olga", password="x")
    page = olga.get(f"/admin/runtime_jobs/organization/{project.organization.pk}/change/").content.decode()
    assert "2 of 2 queued jobs; unlimited submit rate" in page
    form = olga.get(f"/admin/runtime_jobs/plan/{project.organization.plan.pk}/change/").content.decode()
    assert all(f'name="{name}"' in form for name in ("max_queued", "submits_per_minute", "submit_burst"))


def test_plans_are_limited_unless_somebody_says_otherwise():
    plan = Plan.objects.create(name="new")
    assert (plan.max_queued, plan.submits_per_minute, plan.submit_burst) == (10_000, 6_000, 2_000)


class TestNeighbours:
    """One tenant has thousands of jobs waiting in a new pool."""

    FLOOD = 2_000

    @pytest.fixture
    def worker(self, db):
        return WorkerFactory(capacity=200)

    def flood(self) -> None:
        plan = PlanFactory(name="loud", max_queued=None, submits_per_minute=None)
        loud = ProjectFactory(organization=OrganizationFactory(slug="loud", plan=plan))
        for _ in range(self.FLOOD // 500):
            entries: list[Submission] = [submission(loud, spec()) for _ in range(500)]
            bulk_submit.submit_many(entries, policy_for=lambda _: POLICY, default_pool="shared-linux", actor=ALICE)

    def place_of_the_neighbour(self, worker) -> int:
        quiet = ProjectFactory(organization=OrganizationFactory(slug="quiet"))
        submit(submission(quiet, spec()), policy=POLICY, default_pool="shared-linux", actor=ALICE)
        for place in range(1, 30):
            if claiming.claim(worker=worker, offer=offer(worker)).job.org_slug == "quiet":
                return place
        return 30

    def test_a_backlog_of_one_delays_no_other(self, worker):
        assert Pool.objects.get(slug="shared-linux").policy == "fair"
        self.flood()
        assert self.place_of_the_neighbour(worker) <= 2
        assert run_audit() == []

    def test_also_if_the_pool_was_made_after_the_backlog_came(self):
        self.flood()
        worker = WorkerFactory(capacity=200)
        assert self.place_of_the_neighbour(worker) <= 2
        assert run_audit() == []

    def test_by_age_the_backlog_goes_first(self):
        PoolFactory(policy="fifo")
        self.flood()
        assert self.place_of_the_neighbour(WorkerFactory(capacity=200)) == 30
