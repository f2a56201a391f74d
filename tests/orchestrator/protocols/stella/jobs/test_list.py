"""`GET /api/jobs`: filters, pages, statuses."""

from datetime import timedelta

import pytest

from leases.models import LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.core.cause import Cause
from orchestrator.incidents.models import Incident
from orchestrator.protocols.stella.jobs import pages
from orchestrator.selectors.pending_reasons import limits
from runtime_jobs.db_time import database_now
from runtime_jobs.identifiers import new_incident_id
from runtime_jobs.models import Job
from runtime_jobs.orchestration_status import STATUS_OF_STATE, OrchestrationStatus, states_of
from runtime_jobs.states import JobState
from tests.api_client import refused
from tests.factories import ALICE, ProjectFactory, limited, submitted
from tests.orchestrator.protocols.stella.requests import MISSING, claim, complete, fail, listed, ok, row_of, submit

pytestmark = pytest.mark.django_db


def open_incident(job: Job, **columns) -> Incident:
    """An incident of a failed job, as the failure of its last attempt opens it."""
    values = {
        "kind": "job",
        "org_slug": job.org_slug,
        "job_type": job.job_type,
        "summary": "worker_lost",
        "opened_at": job.created_at,
    }
    return Incident.objects.create(incident_ulid=new_incident_id(), job_ulid=job.job_ulid, **values | columns)


def pause(organization, *, until=None):
    target = LimitTarget.of_organization(organization.slug)
    limited(target, kind=LimitKind.PAUSE, max_active=0, until=until, cause=Cause(ALICE, "maintenance"))


class TestStatuses:
    def test_every_state_has_one(self):
        assert set(STATUS_OF_STATE) == set(JobState)
        assert {state for status in OrchestrationStatus for state in states_of(status)} == set(JobState)

    def test_each_status_shows_exactly_its_jobs(self, alice, worker, organization):
        shown = {}
        shown["completed"] = submit(alice)["jobId"]
        complete(claim(worker))
        shown["failed"] = submit(alice)["jobId"]
        fail(claim(worker))
        shown["incident"] = submit(alice)["jobId"]
        fail(claim(worker), "worker_error")
        shown["running"] = submit(alice)["jobId"]
        claim(worker)
        shown["leased"] = submit(alice)["jobId"]
        claim(worker, acknowledge=True)
        shown["canceled"] = submit(alice)["jobId"]
        ok(alice.post(f"/api/jobs/{shown['canceled']}/cancel"))
        shown["queued"] = submit(alice)["jobId"]
        shown["created"] = submit(alice, dependencies=[shown["queued"]])["jobId"]
        assert {status: listed(alice, f"?status={status}") for status in shown} == {
            status: [job_id] for status, job_id in shown.items()
        }
        assert {row["jobId"]: row["status"] for row in ok(alice.get("/api/jobs"))["results"]} == {
            job_id: status for status, job_id in shown.items()
        }
        pause(organization)
        assert (listed(alice, "?status=queued"), listed(alice, "?status=throttled")) == ([], [shown["queued"]])

    def test_a_resolved_incident_is_a_failure(self, alice, worker):
        job_id = submit(alice)["jobId"]
        incident = open_incident(fail(claim(worker)))
        assert ok(alice.get(f"/api/jobs/{job_id}"))["incident"]["summary"] == "worker_lost"
        Incident.objects.filter(pk=incident.pk).update(resolved_at=database_now())
        assert listed(alice, "?status=failed") == [job_id]
        assert listed(alice, "?status=incident") == []

    def test_a_pause_with_an_end_says_when_a_job_may_start(self, alice, organization):
        until = database_now() + timedelta(hours=1)
        pause(organization, until=until)
        shown = submit(alice)
        assert shown["status"] == "throttled"
        assert ok(alice.get("/api/jobs"))["results"][0]["nextEligibleAt"] == shown["nextEligibleAt"]
        assert shown["nextEligibleAt"].startswith(until.strftime("%Y-%m-%dT%H:%M:%S"))

    def test_a_limit_that_only_an_end_frees_has_no_time(self, alice, worker, organization):
        limited(organization.slug, max_active=1, cause=Cause(ALICE, "one at a time"))
        for _ in range(3):
            submit(alice)
        claim(worker)
        rows = ok(alice.get("/api/jobs?status=throttled"))["results"]
        assert [(row["status"], row["nextEligibleAt"]) for row in rows] == [("throttled", None)] * 2
        assert len(listed(alice, "?status=running")) == 1

    def test_a_status_is_that_of_the_row_also_if_its_limit_changes_between_two_queries(
        self, alice, organization, monkeypatch
    ):
        submit(alice)
        found = pages.standings_of

        def after_a_pause(jobs):
            pause(organization)
            return found(jobs)

        monkeypatch.setattr(pages, "standings_of", after_a_pause)
        assert listed(alice, "?status=queued") == []


class TestFilters:
    def test_each_filter(self, alice, project):
        first = submit(alice, jobType="export", correlationId="trace-1", priority="low")
        second = submit(alice, correlationId="trace-2")
        ids = [second["jobId"], first["jobId"]]
        assert listed(alice) == listed(alice, "?tenant=acme-corp") == ids
        assert listed(alice, "?jobType=export") == ids[1:]
        assert listed(alice, "?correlationId=trace-2") == ids[:1]
        assert (listed(alice, "?priority=low"), listed(alice, "?priority=normal")) == (ids[1:], ids[:1])
        assert listed(alice, f"?createdBefore={second['createdAt']}") == ids[1:]
        assert listed(alice, f"?createdAfter={first['createdAt']}") == ids[:1]
        assert listed(alice, f"?createdAfter={second['createdAt']}&jobType=scan") == []

    def test_the_replays_of_a_job(self, alice):
        original, replay = submit(alice), submit(alice)
        Job.objects.filter(pk=row_of(replay).pk).update(replay_of_job_ulid=row_of(original).job_ulid)
        assert listed(alice, f"?replayOf={original['jobId']}") == [replay["jobId"]]
        assert ok(alice.get(f"/api/jobs/{original['jobId']}"))["replays"] == [replay["jobId"]]
        assert ok(alice.get(f"/api/jobs/{replay['jobId']}"))["replayOf"] == original["jobId"]

    def test_jobs_of_all_types_are_listed(self, alice, project):
        job = submitted(project)
        shown = ok(alice.get("/api/jobs?jobType=runtime"))["results"]
        assert [(row["status"], row["requestedAt"]) for row in shown] == [("queued", None)]
        assert ok(alice.get(f"/api/jobs/{shown[0]['jobId']}"))["payload"]["execution"]["command"] == job.command_json

    @pytest.mark.parametrize(
        "query",
        [
            "status=uploaded",
            "status=",
            "jobType=nothing",
            "priority=team",
            "replayOf=1",
            "createdAfter=today",
            "org_slug=x",
            "status=failed&status=queued",
        ],
    )
    def test_an_invalid_filter_is_refused(self, alice, query):
        refused(lambda: alice.get(f"/api/jobs?{query}"), 400, "invalid_query")

    def test_anothers_tenant_is_not_there(self, alice, intruder):
        submit(alice)
        found, missing = (
            refused(lambda name=name: intruder.get(f"/api/jobs?tenant={name}"), 404, "not_found")
            for name in ("acme-corp", "nobody")
        )
        assert {**found, "request_id": ""} == {**missing, "request_id": ""}
        assert listed(intruder) == []


class TestAttempts:
    def test_a_job_is_listed_once_under_the_id_of_its_first_attempt(self, alice, worker):
        shown = submit(alice)
        fail(claim(worker), "worker_shutdown")
        rows = ok(alice.get("/api/jobs"))["results"]
        assert [(row["jobId"], row["attempt"], row["status"]) for row in rows] == [(shown["jobId"], 2, "queued")]
        assert listed(alice, "?status=failed") == []
        retry = row_of(shown)
        assert retry.attempt == 2


class TestPages:
    def walk(self, caller, query, *, back=False):
        """All pages from the first to the last, and back."""
        pages_found, path = [], f"/api/jobs?{query}"
        while path:
            page = ok(caller.get(path))
            pages_found.append([row["jobId"] for row in page["results"]])
            last, path = page, page["next"] and page["next"].partition("testserver")[2]
        while back and last["previous"]:
            last = ok(caller.get(last["previous"].partition("testserver")[2]))
            pages_found.append([row["jobId"] for row in last["results"]])
        return pages_found

    @pytest.mark.parametrize("query", ["limit=2", "limit=2&status=queued"])
    def test_there_and_back(self, alice, query):
        ids = [submit(alice)["jobId"] for _ in range(5)][::-1]
        there, back = [ids[:2], ids[2:4], ids[4:]], [ids[2:4], ids[:2]]
        assert self.walk(alice, query, back=True) == there + back

    @pytest.mark.parametrize("has_few_lanes", [True, False])
    def test_few_matches_among_many_candidates(self, alice, organization, monkeypatch, has_few_lanes):
        monkeypatch.setattr(pages, "GROUP", 2)
        monkeypatch.setattr(pages, "MAX_CANDIDATES", 4)
        monkeypatch.setattr(limits, "MAX_LANES", 1000 if has_few_lanes else 1)
        ProjectFactory(organization=organization, slug="paused")
        target = LimitTarget(LimitScope.PROJECT, organization.slug, "paused")
        limited(target, kind=LimitKind.PAUSE, max_active=0, cause=Cause(ALICE, "maintenance"))
        names = ["paused", *["web"] * 9, "paused", "web", "paused"]
        ids = [submit(alice, project=name)["jobId"] for name in names][::-1]
        throttled = [job_id for job_id, name in zip(ids, names[::-1], strict=True) if name == "paused"]
        found = self.walk(alice, "limit=5&status=throttled")
        assert [job_id for page in found for job_id in page] == throttled
        assert (len(found) == 1) == has_few_lanes, "an empty page has a next one"
        queued = self.walk(alice, "limit=3&status=queued")
        assert [job_id for page in queued for job_id in page] == [job_id for job_id in ids if job_id not in throttled]
        back = self.walk(alice, "limit=3&status=queued", back=True)[len(queued) :]
        assert [job_id for page in reversed(back) for job_id in page] == [job_id for page in queued for job_id in page][
            : sum(map(len, back))
        ]

    def test_a_page_costs_as_many_queries_as_one_job(self, alice, django_assert_max_num_queries):
        for _ in range(3):
            submit(alice)
        with django_assert_max_num_queries(9):
            assert len(listed(alice)) == 3


def test_an_unknown_id_is_not_there(alice, intruder):
    job_id = submit(alice)["jobId"]
    for path in ("", "/graph"):
        found, missing = (
            refused(lambda name=name, path=path: intruder.get(f"/api/jobs/{name}{path}"), 404, "not_found")
            for name in (job_id, MISSING)
        )
        assert {**found, "request_id": ""} == {**missing, "request_id": ""}
