"""Stories over several parts: quotas under load, failures that open a breaker, and a job that loses two workers.

Each change is read where it leaves the server: in the events, at a webhook, and as a notification.
"""

from collections import Counter
from datetime import timedelta

import orjson
import pytest
from django.db import connection

from leases.models import Lease
from orchestrator.audit.runner import run_audit
from orchestrator.incidents.models import Incident
from orchestrator.maintenance.queues import sweep_scheduling
from orchestrator.services import claiming, expiry
from orchestrator.webhooks import notifications
from orchestrator.webhooks.distribution import distribute_page
from orchestrator.webhooks.models import Delivery, NotificationRule
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, OperatorEvent
from runtime_jobs.specs import PAYLOAD_TYPES
from runtime_jobs.states import JobState
from tests.api_client import Caller
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token, offer
from tests.older_transactions import wait_for_older_transactions
from tests.orchestrator.protocols.stella.requests import claim, complete, fail, listed, ok, row_of, submit
from tests.orchestrator.services.test_races import together
from tests.orchestrator.webhooks.world import make_webhook

pytestmark = pytest.mark.django_db(transaction=True)  # pages of events end below the oldest open transaction


@pytest.fixture
def demo(db):
    distribute_page()  # the position of the dispatchers is at the present
    return ProjectFactory(organization=OrganizationFactory(slug="demo")).organization


@pytest.fixture
def alice(demo):
    return Caller(api_token(demo))


@pytest.fixture
def receivers(demo):
    """A webhook for everything, and a rule that gathers."""
    webhook = make_webhook(demo)
    NotificationRule.objects.create(
        organization=demo, name="breakers", event_types=["breaker.opened"], webhook=webhook, gather_seconds=60
    )
    return webhook


QUOTA = "/api/quotas/demo:*"


def take(worker):
    return claiming.claim(worker=worker, offer=offer(worker, job_types=PAYLOAD_TYPES))


def changes_of(caller, *event_types):
    """The events of these types, in order."""
    wait_for_older_transactions()
    page = ok(caller.get(f"/api/events?limit=200&eventType={','.join(event_types)}"))
    return [envelope["eventType"] for envelope in page["results"]]


def delivered():
    """The types of the deliveries, in order."""
    wait_for_older_transactions()
    while not distribute_page().is_complete:
        pass
    return list(Delivery.objects.order_by("id").values_list("event_type", flat=True))


def cool_down():
    with connection.cursor() as cursor:
        cursor.execute("UPDATE lane_breakers SET cool_until = clock_timestamp()")


def change_quota(caller, body, version):
    headers = caller.headers | {"If-Match": f'"{version}"'}
    content = orjson.dumps(body)
    return caller.http.generic("PATCH", QUOTA, content, content_type="application/json", headers=headers)


def test_of_fifty_changes_of_one_version_at_the_same_time_one_wins(alice, demo):
    def change_ten(caller, first):
        return [change_quota(caller, {"maxActive": n, "maxPerHour": n}, "0") for n in range(first, first + 10)]

    callers = [Caller(api_token(demo)) for _ in range(5)]
    changes = [lambda caller=caller, n=n: change_ten(caller, 10 * n + 1) for n, caller in enumerate(callers)]
    answers = [answer for found in together(*changes) for answer in found]
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses == {200: 1, 412: 49}
    (winner,) = (answer.json() for answer in answers if answer.status_code == 200)
    assert winner["maxActive"] == winner["maxPerHour"]
    assert ok(alice.get(QUOTA)) == winner
    assert OperatorEvent.objects.filter(action="quota.set").count() == 1


def test_fifty_submits_and_eight_claimers_under_a_quota_of_one(alice, demo):
    ok(change_quota(alice, {"maxActive": 1}, "0"))
    for number in range(50):
        submit(alice, payload={"imageRef": f"nginx:{number}"})
    first = claim(WorkerFactory())
    throttled = listed(alice, "?status=throttled&limit=100")
    assert len(throttled) == 49
    assert row_of({"jobId": throttled[0]}).state == JobState.QUEUED
    complete(first)
    active = []

    def work(worker):
        ended = 0
        while Job.objects.filter(state=JobState.QUEUED).exists():
            found = take(worker)
            if found is not None:
                active.append(Lease.objects.open().count())
                complete(found)
                ended += 1
        return ended

    workers = [WorkerFactory(capacity=50) for _ in range(8)]
    assert sum(together(*(lambda worker=worker: work(worker) for worker in workers))) == 49
    assert set(active) == {1}
    assert run_audit() == []


def test_twelve_failures_of_one_type(alice, demo, receivers):
    worker = WorkerFactory(capacity=50)
    for number in range(12):
        submit(alice, payload={"imageRef": f"nginx:{number}"})
        fail(take(worker), reason="worker_error")
    sweep_scheduling()
    for number in range(3):
        submit(alice, payload={"imageRef": f"later:{number}"})
    assert take(worker) is None, "the breaker is open"
    assert len(listed(alice, "?status=throttled")) == 3
    assert Incident.objects.get(kind="breaker").job_type == "scan"

    other = ProjectFactory(organization=OrganizationFactory(slug="other")).organization
    submit(Caller(api_token(other)))
    complete(claim(worker))

    cool_down()
    sweep_scheduling()
    probe = take(worker)
    assert probe is not None
    assert take(worker) is None, "one probe"
    complete(probe)
    sweep_scheduling()
    assert take(worker) is not None
    assert take(worker) is not None

    changes = ["breaker.opened", "breaker.half_opened", "breaker.closed"]
    assert changes_of(alice, *changes) == changes
    assert changes_of(alice, "incident.opened", "incident.resolved") == [*["incident.opened"] * 13, "incident.resolved"]
    found = delivered()
    assert [name for name in found if name in changes] == changes
    assert found.count("incident.opened") == 13
    assert "notification" not in found, "gathered for a minute"
    assert notifications.send_gathered(now=database_now() + timedelta(seconds=61)) == 1
    (notification,) = Delivery.objects.filter(event_type="notification")
    payload = orjson.loads(notification.body)["payload"]
    assert (payload["rule"]["name"], payload["count"], payload["lastEvent"]["eventType"]) == (
        "breakers", 1, "breaker.opened",
    )  # fmt: skip
    assert set(Delivery.objects.values_list("org_slug", flat=True)) == {"demo"}
    assert run_audit() == []


def test_a_worker_that_is_killed_twice_under_a_job(alice, demo, receivers):
    job = submit(alice)
    for _ in range(2):
        lost = claim(WorkerFactory())
        expiry.expire(job_ulid=lost.job.job_ulid, now=lost.lease.expires_at)
    assert row_of(job).state == JobState.FAILED
    shown = ok(alice.get(f"/api/jobs/{job['jobId']}"))
    assert (shown["status"], len(shown["attempts"])) == ("incident", 2)
    assert listed(alice, "?status=incident") == [job["jobId"]]

    incident = Incident.objects.get()
    ok(alice.post(f"/v1/incidents/{incident.incident_ulid}/resolve", {"reason": "a new machine"}))
    assert ok(alice.get(f"/api/jobs/{job['jobId']}"))["status"] == "failed"

    recorded = ["incident.opened", "incident.resolved"]
    assert changes_of(alice, *recorded) == recorded
    assert [name for name in delivered() if name in recorded] == recorded
    history = ok(alice.get(f"/api/jobs/{job['jobId']}/events"))["results"]
    assert [envelope["eventType"] for envelope in history].count("lease.expired") == 2
    assert run_audit() == []
