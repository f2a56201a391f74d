"""The buttons that hold jobs back and let them go, the lists that say so, and who may press them."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from leases.models import Breaker, Limit, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.admin.dashboard.alerts import current_alerts, read_state
from orchestrator.admin.labels import EVENTS
from orchestrator.core.cause import Cause
from orchestrator.incidents import breakers
from orchestrator.incidents.models import Incident
from orchestrator.services import claiming, job_end, tenants
from runtime_jobs.db_time import database_now
from runtime_jobs.event_types import JOB_EVENT_TYPES
from runtime_jobs.events import Actor
from runtime_jobs.models import Job, JobEvent, OperatorEvent, Organization, Plan, Project
from tests.factories import (
    OPERATOR,
    OrganizationFactory,
    PlanFactory,
    PoolFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    limited,
    offer,
    scheduler_beat,
    submitted,
)
from tests.orchestrator.admin.conftest import client_of, person
from tests.orchestrator.admin.pages import address
from workers.models import Pool

pytestmark = pytest.mark.django_db

WHY = {"reason": "new disks"}
BURST = {"burst": "1"}


@pytest.fixture
def project(db):
    return ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))


@pytest.fixture
def pool(db):
    return PoolFactory()


def button(row, name: str) -> str:
    return address(type(row), "change", row.pk).replace("change/", f"{name}/")


def text_of(answer) -> str:
    return answer.content.decode()


def row_of(noun: str, project, pool):
    return {"organization": project.organization, "project": project, "pool": pool}[noun]


SUBJECTS = {
    "organization": LimitTarget.of_organization("sandtrace"),
    "project": LimitTarget(LimitScope.PROJECT, "sandtrace", "web"),
    "pool": LimitTarget(LimitScope.POOL, "", "shared-linux"),
}
NEEDED = {
    "organization": ("runtime_jobs.view_organization", "runtime_jobs.operate_job"),
    "project": ("runtime_jobs.view_project", "runtime_jobs.operate_job"),
    "pool": ("workers.view_pool", "workers.change_pool"),
}


@pytest.mark.parametrize("noun", SUBJECTS)
class TestHolding:
    def test_a_pause_holds_says_so_and_ends_with_resume(self, olga, project, pool, noun):
        row, subject, worker = row_of(noun, project, pool), SUBJECTS[noun], WorkerFactory()
        submitted(project)
        page = address(type(row), "change", row.pk)
        assert button(row, "resume") not in text_of(olga.get(page)), "nothing to resume"
        until = (database_now() + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M")
        answer = olga.post(button(row, "pause"), {"until": until, **WHY}, follow=True)
        assert f"paused by operator olga until {until.replace('T', ' ')} UTC (in 1 h" in text_of(answer)
        assert subject.limit(LimitKind.PAUSE).note == "new disks"
        assert claiming.claim(worker=worker, offer=offer(worker)) is None
        assert button(row, "resume") in text_of(olga.get(page))
        olga.post(button(row, "resume"), WHY)
        assert not Limit.objects.exists()
        assert claiming.claim(worker=worker, offer=offer(worker)) is not None
        events = OperatorEvent.objects.order_by("pk").values_list("action", "actor", "target", "reason")
        assert list(events) == [
            (action, "operator:olga", str(subject), "new disks") for action in ("limit.set", "limit.lifted")
        ]

    def test_a_throttle_rations_and_ends_without_a_number(self, olga, project, pool, noun):
        row, subject = row_of(noun, project, pool), SUBJECTS[noun]
        answer = olga.post(button(row, "throttle"), {"per_hour": "60", "burst": "5", **WHY}, follow=True)
        assert "throttled to 60 per hour, burst 5 by operator olga: new disks" in text_of(answer)
        assert subject.limit(LimitKind.THROTTLE).per_hour == 60
        olga.post(button(row, "throttle"), {"per_hour": "", **BURST, **WHY})
        assert not Limit.objects.exists()
        answer = olga.post(button(row, "throttle"), {"per_hour": "", **BURST, **WHY}, follow=True)
        assert "is not throttled." in text_of(answer)

    @pytest.mark.parametrize(
        ("name", "wrong"),
        [
            ("pause", {"reason": ""}),
            ("pause", {"until": "soon", **WHY}),
            ("pause", {"until": "2020-01-01T00:00", **WHY}),
            ("throttle", {"per_hour": "0", **BURST, **WHY}),
            ("throttle", {"per_hour": "5", "burst": "", **WHY}),
            ("throttle", {"per_hour": "5", "until": "2020-01-01T00:00", **BURST, **WHY}),
            ("resume", {"reason": ""}),
        ],
        ids=str,
    )
    def test_what_makes_no_sense_is_asked_again(self, olga, project, pool, noun, name, wrong):
        assert olga.post(button(row_of(noun, project, pool), name), wrong).status_code == 400
        assert not Limit.objects.exists()

    @pytest.mark.parametrize("name", ["pause", "resume", "throttle"])
    def test_it_takes_the_permission(self, project, pool, noun, name):
        row, (view, act) = row_of(noun, project, pool), NEEDED[noun]
        viewer = client_of(person("vera", view))
        assert viewer.post(button(row, name), {"per_hour": "5", **BURST, **WHY}).status_code == 403
        assert not Limit.objects.exists()
        assert client_of(person("otto", view, act)).get(button(row, name)).status_code == 200


class TestLimits:
    @pytest.fixture
    def organization(self, project) -> Organization:
        return project.organization

    def test_a_rate_and_an_emergency_lane_are_set_and_lifted(self, olga, organization):
        rate = {"kind": "rate", "job_type": "steps", "per_hour": "60", "burst": "5", **WHY}
        assert "steps, rate: 60 per hour, burst 5" in text_of(
            olga.post(button(organization, "limit"), rate, follow=True)
        )
        lane = {"kind": "emergency", "job_type": "*", "max_active": "2", **WHY}
        answer = olga.post(button(organization, "limit"), lane, follow=True)
        assert "all types, emergency concurrency: 0 of 2" in text_of(answer)
        for asked in (rate, lane):
            olga.post(button(organization, "limit"), asked | {"per_hour": "", "burst": "", "max_active": ""})
        assert not Limit.objects.exists()

    @pytest.mark.parametrize(
        "wrong",
        [
            {"kind": "rate", "per_hour": "0"},
            {"kind": "rate", "per_hour": "5", "max_active": "5"},
            {"kind": "organization", "per_hour": "5"},
            {"kind": "emergency", "job_type": "steps", "max_active": "5"},
            {"kind": "plan", "max_active": "5"},
        ],
        ids=str,
    )
    def test_numbers_belong_to_their_kind(self, olga, organization, wrong):
        assert olga.post(button(organization, "limit"), {"job_type": "*", **WHY} | wrong).status_code == 400
        assert not Limit.objects.exists()

    def test_the_list_says_whose_how_much_until_when_by_whom_and_why(self, olga, project, pool):
        worker = WorkerFactory()
        limited("sandtrace", max_active=3, cause=Cause(OPERATOR, "noisy"))
        limited("sandtrace", "runtime", kind=LimitKind.RATE, per_hour=2, cause=Cause(OPERATOR, "dear"))
        until = database_now() + timedelta(hours=12, minutes=30)
        actor = Actor("client", "token ci")
        limited(SUBJECTS["project"], kind=LimitKind.PAUSE, max_active=0, until=until, cause=Cause(actor, "deploy"))
        limited(SUBJECTS["pool"], kind=LimitKind.PAUSE, max_active=0, cause=Cause(OPERATOR, "disks"))
        limited(SUBJECTS["project"], kind=LimitKind.PAUSE, cause=Cause(actor, "x"))
        limited(SUBJECTS["pool"], kind=LimitKind.PAUSE)
        submitted(project)
        claimed(worker)
        limited(SUBJECTS["project"], kind=LimitKind.PAUSE, max_active=0, until=until, cause=Cause(actor, "deploy"))
        limited(SUBJECTS["pool"], kind=LimitKind.PAUSE, max_active=0, cause=Cause(OPERATOR, "disks"))
        page = text_of(olga.get(address(Limit, "changelist")))
        for words in (
            "1 of 3", "runtime jobs of sandtrace", "2 per hour, burst 1", "sandtrace/web", "pool shared-linux",
            "in 12 h", "token ci", "olga", "noisy", "dear", "deploy", "disks",
        ):  # fmt: skip
            assert words in page, words
        assert re.search(r">in \d+ min", page), "when the rate lets the next one start"
        narrowed = text_of(olga.get(f"{address(Limit, 'changelist')}?kind=pause&scope=pool"))
        assert "disks" in narrowed
        assert "noisy" not in narrowed

    def test_a_project_is_limited_on_its_page(self, olga, project):
        page = olga.post(button(project, "limit"), {"max_active": "2", **WHY}, follow=True)
        assert "Max concurrency of sandtrace/web: 0 of 2." in text_of(page)
        submitted(project)
        claimed(WorkerFactory())
        assert "1 of 2" in text_of(olga.get(address(Project, "change", project.pk)))
        assert olga.post(button(project, "limit"), {"max_active": "-1", **WHY}).status_code == 400
        assert olga.post(button(project, "limit"), {"max_active": "3", "reason": ""}).status_code == 400
        assert Limit.objects.get().max_active == 2
        olga.post(button(project, "limit"), {"max_active": "", **WHY})
        assert not Limit.objects.exists()
        viewer = client_of(person("vera", "runtime_jobs.view_project", "runtime_jobs.operate_job"))
        assert viewer.post(button(project, "limit"), {"max_active": "2", **WHY}).status_code == 403

    @pytest.mark.parametrize("kind", ["organization", "project", "rate", "emergency", "pause", "throttle"])
    def test_one_is_lifted_from_its_page(self, olga, organization, kind):
        match kind:
            case "pause":
                limited(SUBJECTS["pool"], kind=LimitKind.PAUSE, max_active=0)
            case "throttle":
                limited(SUBJECTS["project"], kind=LimitKind.THROTTLE, per_hour=5)
            case "rate":
                limited("sandtrace", kind=LimitKind.RATE, per_hour=5)
            case "project":
                limited(SUBJECTS["project"], kind=LimitKind.PROJECT, max_active=5)
            case _:
                limited("sandtrace", kind=LimitKind(kind), max_active=5)
        limit = Limit.objects.get()
        assert button(limit, "remove") in text_of(olga.get(address(Limit, "change", limit.pk)))
        assert client_of(person("vera", "leases.view_limit")).post(button(limit, "remove"), WHY).status_code == 403
        olga.post(button(limit, "remove"), WHY)
        assert not Limit.objects.exists()
        assert OperatorEvent.objects.filter(action="limit.lifted", actor="operator:olga").count() == 1

    def test_who_operates_jobs_lifts_a_pause_and_not_a_limit(self, organization):
        otto = client_of(person("otto", "leases.view_limit", "runtime_jobs.operate_job"))
        limited(SUBJECTS["project"], kind=LimitKind.PAUSE, max_active=0)
        limited(SUBJECTS["pool"], kind=LimitKind.PAUSE, max_active=0)
        limited("sandtrace", max_active=5)
        answers = {
            limit.scope + limit.kind: otto.get(button(limit, "remove")).status_code for limit in Limit.objects.all()
        }
        assert answers == {"projectpause": 200, "poolpause": 403, "organizationorganization": 403}

    def test_what_follows_the_plan_has_no_button(self, olga, organization):
        Plan.objects.update(max_active=2)
        tenants.sync_plan(org_slug="sandtrace")
        limit = Limit.objects.get(kind="plan")
        assert button(limit, "remove") not in text_of(olga.get(address(Limit, "change", limit.pk)))
        assert olga.post(button(limit, "remove"), WHY).status_code == 404


def test_a_pools_policy_is_changed_with_a_reason(olga, pool):
    answer = olga.post(button(pool, "policy"), {"policy": "fair", **WHY}, follow=True)
    assert "Fair share" in text_of(answer)
    assert Pool.objects.get(slug="shared-linux").policy == "fair"
    assert OperatorEvent.objects.get().action == "pool.policy"
    assert olga.post(button(pool, "policy"), {"policy": "x", **WHY}).status_code == 400
    viewer = client_of(person("vera", "workers.view_pool"))
    assert viewer.post(button(pool, "policy"), {"policy": "fifo", **WHY}).status_code == 403


def test_a_plan_has_its_limits_and_weight(olga, db):
    plan = PlanFactory(name="free", priority=100)
    asked = {"priority": "100", "max_timeout_seconds": "60", "max_active": "1", "one_per_address": "on", "weight": "3"}
    asked |= {"max_queued": "500", "submits_per_minute": "", "submit_burst": "64", "default_timeout_seconds": "60"}
    assert olga.post(address(Plan, "change", plan.pk), asked).status_code == 302
    plan.refresh_from_db()
    assert (plan.max_active, plan.one_per_address, plan.weight) == (1, True, 3)
    assert (plan.max_queued, plan.submits_per_minute, plan.submit_burst) == (500, None, 64)
    too_little = olga.post(address(Plan, "change", plan.pk), asked | {"max_queued": "63", "submit_burst": "63"})
    assert set(too_little.context["adminform"].form.errors) == {"max_queued", "submit_burst"}
    assert "free (100)" in text_of(olga.get(address(Plan, "changelist")))


@pytest.fixture
def breaker(db) -> Breaker:
    """An open one, with its incident, after twelve failures."""
    project = ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))
    worker = WorkerFactory()
    for _ in range(12):
        submitted(project)
        job_end.fail(lease_ulid=claimed(worker).lease.lease_ulid, worker=worker, reason="worker_error")
    return breakers.evaluate_breaker(org_slug="sandtrace", job_type="runtime")


class TestBreakers:
    def test_a_half_open_one_says_whether_a_job_tests_it(self, olga, breaker):
        Breaker.objects.update(cool_until=database_now())
        breakers.evaluate_breaker(org_slug="sandtrace", job_type="runtime")
        for running, words in ((False, "one job may start"), (True, "probe job")):
            if running:
                submitted(Project.objects.get())
                claimed()
            for page in (address(Breaker, "changelist"), address(Breaker, "change", breaker.pk), "/admin/"):
                text = text_of(olga.get(page))
                assert words in text, page
                assert ("probe job" in text) == running, page

    def test_an_open_one_is_shown_and_reset(self, olga, breaker):
        page = text_of(olga.get(address(Breaker, "changelist")))
        assert "sandtrace" in page
        assert re.search(r">in \d+ (s|min)", page)
        assert button(breaker, "reset") in text_of(olga.get(address(Breaker, "change", breaker.pk)))
        answer = olga.post(button(breaker, "reset"), WHY, follow=True)
        assert "Breaker for runtime jobs of sandtrace reset." in text_of(answer)
        breaker.refresh_from_db()
        assert breaker.state == "closed"
        assert button(breaker, "reset") not in text_of(olga.get(address(Breaker, "change", breaker.pk)))
        assert "The breaker for runtime jobs of sandtrace is closed." in text_of(
            olga.post(button(breaker, "reset"), WHY, follow=True)
        )

    def test_it_takes_the_permission(self, breaker):
        viewer = client_of(person("vera", "leases.view_breaker"))
        assert viewer.post(button(breaker, "reset"), WHY).status_code == 403
        breaker.refresh_from_db()
        assert breaker.state == "open"

    def test_its_incident_is_listed_until_and_after_it_is_resolved(self, olga, breaker):
        page = address(Incident, "changelist")
        summary = Incident.objects.get(kind="breaker").summary
        assert summary in text_of(olga.get(f"{page}?state=open"))
        assert summary not in text_of(olga.get(f"{page}?state=resolved"))
        olga.post(button(breaker, "reset"), WHY)
        assert summary not in text_of(olga.get(f"{page}?state=open"))
        assert "olga" in text_of(olga.get(f"{page}?state=resolved"))


class TestPriorities:
    def test_a_waiting_job_gets_another(self, olga, project):
        job = submitted(project)
        assert button(job, "prioritize") in text_of(olga.get(address(Job, "change", job.pk)))
        answer = olga.post(button(job, "prioritize"), {"priority": "high", **WHY}, follow=True)
        assert "priority changed to high" in text_of(answer)
        job.refresh_from_db()
        assert job.priority == 250
        event = JobEvent.objects.get(event_type="job.prioritized")
        assert (event.actor_id, event.payload_json["reason"]) == ("olga", "new disks")

    def test_a_blocked_job_gets_another_too(self, olga, project):
        job = submitted(project, depends_on=(submitted(project),))
        assert button(job, "prioritize") in text_of(olga.get(address(Job, "change", job.pk)))
        olga.post(button(job, "prioritize"), {"priority": "high", **WHY}, follow=True)
        job.refresh_from_db()
        assert (job.state, job.priority) == ("blocked", 250)

    def test_many_do_and_those_that_run_say_so(self, olga, project):
        running, *waiting = (submitted(project) for _ in range(3))
        assert claimed(WorkerFactory()).job.pk == running.pk
        names = "&".join(f"job={job.job_ulid}" for job in (running, *waiting))
        page = f"{address(Job, 'changelist')}bulk/prioritize/?{names}"
        nowhere = olga.post(page, {"priority": "emergency", **WHY}, follow=True)
        assert "set an emergency limit for the organization" in text_of(nowhere)
        limited(running.org_slug, kind=LimitKind.EMERGENCY, max_active=2)
        answer = olga.post(page, {"priority": "emergency", **WHY}, follow=True)
        assert "The job is not queued, or its priority is already emergency." in text_of(answer)
        assert list(Job.objects.order_by("pk").values_list("priority", flat=True)) == [200, 400, 400]
        listed = olga.post(
            address(Job, "changelist"), {"action": "prioritize_selected", "_selected_action": [waiting[0].pk]}
        )
        assert "bulk/prioritize/" in listed["Location"]

    @pytest.mark.parametrize("wrong", [{"priority": "urgent"}, {"priority": ""}, {"reason": ""}], ids=str)
    def test_what_makes_no_sense_changes_nothing(self, olga, project, wrong):
        job = submitted(project)
        assert olga.post(button(job, "prioritize"), {"priority": "high", **WHY} | wrong).status_code == 400
        job.refresh_from_db()
        assert job.priority == 200

    def test_it_takes_the_permission(self, viewer, project):
        job = submitted(project)
        assert viewer.post(button(job, "prioritize"), {"priority": "high", **WHY}).status_code == 403
        running = claimed(WorkerFactory()).job
        assert button(running, "prioritize") not in text_of(viewer.get(address(Job, "change", running.pk)))


class TestFirstPage:
    @pytest.fixture
    def now(self, db):
        now = timezone.now()
        scheduler_beat(now, "here:1")
        return now

    def alerts(self, now) -> dict[str, str]:
        return {alert.text: alert.link for alert in current_alerts(read_state(now))}

    def test_what_is_paused_or_throttled_is_shown_with_its_rows(self, olga, project, pool, now):
        until = now + timedelta(hours=12, minutes=30)
        limited(SUBJECTS["organization"], kind=LimitKind.THROTTLE, per_hour=6, cause=Cause(OPERATOR, "noisy"))
        limited(SUBJECTS["pool"], kind=LimitKind.PAUSE, max_active=0, until=until, cause=Cause(OPERATOR, "disks"))
        (first, link), (second, _) = self.alerts(now).items()
        assert first.startswith(f"Pool shared-linux: paused by operator olga until {until:%Y-%m-%d %H:%M} UTC (in 12 h")
        assert first.endswith("): disks")
        assert second == "sandtrace: throttled to 6 per hour, burst 1 by operator olga: noisy"
        assert [limit.kind for limit in olga.get(link).context["cl"].result_list] == ["pause"]
        assert not [text for text in self.alerts(now + timedelta(hours=13)) if text.startswith("Pool")]

    def test_many_are_shown_in_one(self, olga, now, project):
        for number in range(8):
            subject = LimitTarget(LimitScope.PROJECT, "sandtrace", f"web-{number}")
            limited(subject, kind=LimitKind.PAUSE, max_active=0)
        *one_by_one, (text, link) = self.alerts(now).items()
        assert len(one_by_one) == 5
        assert text == "3 more pauses or throttles."
        assert len(olga.get(link).context["cl"].result_list) == 8

    def test_an_open_breaker_and_its_incident_are_shown(self, olga, now, breaker):
        found = {
            text: link
            for text, link in self.alerts(now).items()
            if "12 platform errors" not in text and "offline" not in text
        }
        (opened, its_rows), (incident, incidents) = found.items()
        assert opened.startswith("Breaker open for runtime jobs of sandtrace: too many failures; half-open in ")
        assert incident == f"13 open incidents: {Incident.objects.earliest('pk').summary}"
        for link, rows in ((its_rows, 1), (incidents, 13)):
            assert len(olga.get(link).context["cl"].result_list) == rows
        olga.post(button(breaker, "reset"), WHY)
        assert not self.alerts(now).keys() & {opened, incident}


def test_a_key_in_a_reason_is_not_kept(olga, project):
    key = "rtl_01kkygn4z3fkef0g4tgm6g3b1j"
    olga.post(button(project, "pause"), {"reason": f"see {key}"})
    assert key not in OperatorEvent.objects.get().reason + Limit.objects.get().note


def test_a_projects_other_button_is_still_there(olga, project):
    page = text_of(olga.get(address(Project, "change", project.pk)))
    for name in ("pause", "throttle", "webhook-secret"):
        assert button(project, name) in page


def test_every_event_of_a_job_has_words_in_its_timeline():
    assert set(JOB_EVENT_TYPES) == set(EVENTS)
