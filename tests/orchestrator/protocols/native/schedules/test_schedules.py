"""`/v1/schedules`: created, changed, paused, run, deleted, and every bad input refused by its field."""

import pytest

from orchestrator.schedules.models import Schedule, ScheduleTick
from runtime_jobs.models import Job, OperatorEvent
from runtime_jobs.models.tenants import Scope
from tests.api_client import Caller, refused
from tests.factories import api_token
from tests.orchestrator.schedules.world import JOB

pytestmark = pytest.mark.django_db
BODY = {"org_slug": "sandtrace", "name": "nightly scan", "cron": "30 3 * * MON-FRI", "job": JOB}
PATH = "/v1/schedules"


def created(caller, **changes):
    response = caller.post(PATH, BODY | changes)
    assert response.status_code == 201, response.content
    return response.json()


def test_a_schedule_is_created_read_and_listed(alice):
    response = alice.post(PATH, BODY | {"time_zone": "Europe/Berlin", "missed": "all", "overlap": "skip"})
    made = response.json()
    assert (response.status_code, response["Location"]) == (201, f"{PATH}/{made['schedule_id']}")
    assert (made["job"], made["time_zone"], made["missed"], made["overlap"]) == (JOB, "Europe/Berlin", "all", "skip")
    assert (made["status"], len(made["next_times"]), made["next_times"][0]) == ("active", 5, made["next_at"])
    assert made["updated_by"] == {"kind": "client", "id": "token test"}
    shown = alice.get(f"{PATH}/{made['schedule_id']}").json()
    assert shown == made
    (listed,) = alice.get(f"{PATH}?status=active&org_slug=sandtrace").json()["results"]
    assert listed == {name: value for name, value in made.items() if name != "next_times"}
    event = OperatorEvent.objects.get()
    assert (event.action, event.org_slug, event.after["cron"]) == ("schedule.created", "sandtrace", BODY["cron"])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"cron": "0 0 30 FEB *"}, "cron"),
        ({"cron": "* * * * * *"}, "cron"),
        ({"cron": "@reboot"}, "cron"),
        ({"cron": "x" * 201}, "cron"),
        ({"cron": 5}, "cron"),
        ({"time_zone": "../../etc/passwd"}, "time_zone"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"missed": "some"}, "missed"),
        ({"overlap": "maybe"}, "overlap"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"job": {}}, "job"),
        ({"job": JOB | {"spec": {"payload": 7}}}, "job"),
        ({"job": JOB | {"job_type": "unknown"}}, "job"),
        ({"job": JOB | {"org_slug": "other"}}, "job"),
        ({"job": JOB | {"trigger": {"kind": "manual"}}}, "job"),
        ({"job": []}, "job"),
        ({"org_slug": "A b"}, "org_slug"),
        ({"next_at": "2026-01-01T00:00:00Z"}, "next_at"),
        ({"status": "paused"}, "status"),
    ],
)
def test_a_bad_body_is_refused_by_its_field(alice, changes, field):
    response = alice.post(PATH, BODY | changes)
    assert response.status_code == 400, response.content
    assert {name.partition(".")[0] for name in response.json()["errors"]} == {field}
    assert not Schedule.objects.exists()


def test_a_bad_change_is_refused_and_changes_nothing(alice):
    made = created(alice)
    path = f"{PATH}/{made['schedule_id']}"
    refused(lambda: alice.call("PATCH", path, {}), 400, "invalid")
    refused(lambda: alice.call("PATCH", path, {"cron": "0 0 31 4 *"}), 400, "invalid")
    refused(lambda: alice.call("PATCH", path, {"org_slug": "x"}), 400, "unknown_field")
    created(alice, name="other")
    refused(lambda: alice.call("PATCH", path, {"name": "other"}), 409, "conflict")
    assert alice.get(path).json() == made


def test_a_schedule_is_changed(alice):
    made = created(alice)
    path = f"{PATH}/{made['schedule_id']}"
    job = JOB | {"priority": "low"}
    changed = alice.call("PATCH", path, {"cron": "0 4 * * *", "job": job, "overlap": "queue"}).json()
    assert (changed["cron"], changed["job"], changed["overlap"]) == ("0 4 * * *", job, "queue")
    assert changed["next_at"] != made["next_at"]
    event = OperatorEvent.objects.latest("id")
    assert event.action == "schedule.changed"
    assert set(event.after) == {"cron", "job", "overlap"}


def test_names_are_unique_and_a_repeated_request_returns_the_first_schedule(alice):
    key = {"Idempotency-Key": "k"}
    first, again = alice.post(PATH, BODY, **key), alice.post(PATH, BODY, **key)
    assert (again.status_code, again["Idempotency-Replayed"], again.json()) == (201, "true", first.json())
    refused(lambda: alice.post(PATH, BODY), 409, "conflict")
    refused(lambda: alice.post(PATH, BODY | {"name": "x"}, **key), 409, "idempotency_conflict")
    assert Schedule.objects.count() == 1


def test_an_organization_has_a_bounded_number_of_schedules(alice, settings):
    settings.SCHEDULES_PER_ORGANIZATION = 1
    made = created(alice)
    problem = refused(lambda: alice.post(PATH, BODY | {"name": "x"}), 409, "conflict")
    assert problem["limit"] == 1
    assert alice.call("DELETE", f"{PATH}/{made['schedule_id']}").status_code == 204
    created(alice, name="x")


def test_a_schedule_is_paused_and_resumed(alice):
    made = created(alice)
    path = f"{PATH}/{made['schedule_id']}"
    paused = alice.post(f"{path}/pause", {"reason": "maintenance"}).json()
    assert (paused["status"], paused["next_at"], len(paused["next_times"])) == ("paused", None, 5)
    event = OperatorEvent.objects.latest("id")
    assert (event.before, event.after, event.reason) == (
        {"status": "active"}, {"status": "paused"}, "maintenance",
    )  # fmt: skip
    resumed = alice.post(f"{path}/resume").json()
    assert (resumed["status"], resumed["next_at"]) == ("active", made["next_at"])


def test_a_schedule_is_run_now_and_its_times_are_listed(alice):
    made = created(alice, overlap="skip")
    path = f"{PATH}/{made['schedule_id']}"
    key = {"Idempotency-Key": "now"}
    first, again = (alice.post(f"{path}/run", {"reason": "now"}, **key) for _ in range(2))
    job = Job.objects.get()
    assert (first.status_code, first.json()) == (201, {"job_id": job.job_ulid, "schedule_id": made["schedule_id"]})
    assert first["Location"] == f"/v1/jobs/{job.job_ulid}"
    assert (again.json(), again["Idempotency-Replayed"]) == (first.json(), "true")
    refused(lambda: alice.post(f"{path}/run"), 409, "conflict")
    (tick,) = alice.get(f"{path}/ticks").json()["results"]
    assert (tick["job_id"], tick["outcome"], tick["is_manual"]) == (job.job_ulid, "submitted", True)
    assert alice.get(path).json()["next_at"] == made["next_at"]
    assert alice.get(f"/v1/jobs/{job.job_ulid}").json()["trigger"] == {"kind": "manual", "actor": "token test"}


def test_a_deleted_schedule_leaves_its_jobs(alice):
    made = created(alice)
    path = f"{PATH}/{made['schedule_id']}"
    alice.post(f"{path}/run")
    assert alice.call("DELETE", path).status_code == 204
    refused(lambda: alice.get(path), 404, "not_found")
    assert (Job.objects.count(), ScheduleTick.objects.count()) == (1, 0)


def test_a_refused_submit_by_hand_is_answered_as_a_submit(alice, organization):
    made = created(alice)
    organization.projects.update(enabled=False)
    refused(lambda: alice.post(f"{PATH}/{made['schedule_id']}/run"), 403, "project_not_enabled")
    assert not ScheduleTick.objects.exists()


def test_a_token_without_the_scope_is_refused(organization):
    reader = Caller(api_token(organization, (Scope.ORCH_READ, Scope.JOBS_WRITE)))
    for call in (lambda: reader.get(PATH), lambda: reader.post(PATH, BODY)):
        refused(call, 403, "insufficient_scope")


def test_who_may_not_submit_jobs_may_not_choose_those_of_a_schedule(alice, organization):
    path = f"{PATH}/{created(alice)['schedule_id']}"
    operator = Caller(api_token(organization, (Scope.ORCH_OPERATE,)))
    for call in (
        lambda: operator.post(PATH, BODY | {"name": "other"}),
        lambda: operator.call("PATCH", path, {"cron": "* * * * *"}),
        lambda: operator.post(f"{path}/run"),
    ):
        assert refused(call, 403, "insufficient_scope")["scope"] == "jobs:write"
    assert [operator.post(f"{path}/{name}").status_code for name in ("pause", "resume")] == [200, 200]
    assert [operator.get(address).status_code for address in (PATH, path, f"{path}/ticks")] == [200, 200, 200]
    assert operator.call("DELETE", path).status_code == 204


@pytest.mark.parametrize("query", ["status=unknown", "name=x", "limit=0", "cursor=x"])
def test_an_unknown_filter_is_refused(alice, query):
    refused(lambda: alice.get(f"{PATH}?{query}"), 400, "invalid_query")
