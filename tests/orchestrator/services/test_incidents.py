"""A job that failed through no fault of its own, and that nothing retries, is an incident until it is resolved."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.incidents.models import Incident, IncidentKind
from orchestrator.incidents.operations import RETRIED, acknowledge_incident, resolve_incident
from orchestrator.services import batch_calls, cancellation, expiry, heartbeat, job_end, late_results, retries
from orchestrator.services.job_end import ReadResult
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import IncidentOfBreaker, NotFound, ResourceConflict
from runtime_jobs.models import Job, OperatorEvent
from runtime_jobs.states import ESCALATED_FAILURES, FailureReason
from tests.factories import (
    ALICE,
    LATE_POLICY,
    OPERATOR,
    ProjectFactory,
    WorkerFactory,
    claimed,
    submitted,
    submitted_steps,
)

pytestmark = pytest.mark.django_db


def failed(reason: FailureReason = FailureReason.WORKER_ERROR, **options) -> Job:
    submitted()
    taken = claimed(worker := WorkerFactory())
    return job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=worker, reason=reason, **options)


def events(incident: Incident) -> list[tuple[str, str]]:
    found = OperatorEvent.objects.filter(target=f"incident:{incident.incident_ulid}").order_by("id")
    return [(event.action, event.actor) for event in found]


class TestOpening:
    def test_a_workers_failure_opens_one_with_its_event(self):
        job = failed()
        incident = Incident.objects.get()
        assert (incident.kind, incident.status, incident.job_ulid) == ("job", "open", job.job_ulid)
        assert (incident.org_slug, incident.job_type, incident.reason) == (job.org_slug, "runtime", "worker_error")
        assert incident.opened_at == job.finished_at
        assert events(incident) == [("incident.opened", "core:policy")]
        event = OperatorEvent.objects.get(action="incident.opened")
        assert (event.org_slug, event.job_type) == (job.org_slug, "runtime")
        assert event.after == {
            "kind": "job", "job_id": job.job_ulid, "reason": "worker_error", "status": "open",
        }  # fmt: skip

    @pytest.mark.parametrize("reason", FailureReason)
    def test_the_class_of_the_failure_decides(self, reason):
        if reason in {"never_acknowledged", "lease_expired", "worker_lost", "worker_shutdown", "worker_disk_full"}:
            return  # those are retried first, or found by the server
        failed(reason)
        assert Incident.objects.exists() == (reason in ESCALATED_FAILURES)

    def test_one_that_is_retried_automatically_opens_none_and_the_last_attempt_one(self):
        submitted()
        for expected in (0, 1):
            lost = claimed()
            expiry.expire(job_ulid=lost.job.job_ulid, now=lost.lease.expires_at)
            assert Incident.objects.count() == expected
        incident = Incident.objects.get()
        assert (incident.job_ulid, incident.reason) == (lost.job.job_ulid, "lease_expired")
        assert Job.objects.get(job_ulid=incident.job_ulid).attempt == 2

    def test_a_canceled_job_opens_none(self):
        submitted()
        taken = claimed(worker := WorkerFactory())
        cancellation.cancel(job_ulid=taken.job.job_ulid, actor=ALICE, deadline_seconds=60)
        job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)
        assert not Incident.objects.exists()

    def test_a_lost_job_opens_one_when_no_result_came(self):
        submitted_steps(policy=LATE_POLICY)
        taken = claimed(job_types=("steps",))
        expiry.expire(job_ulid=taken.job.job_ulid, now=taken.lease.expires_at)
        assert not Incident.objects.exists()
        late_results.give_up(job_ulid=taken.job.job_ulid, now=database_now() + timedelta(hours=2))
        assert Incident.objects.get().reason == "lease_expired"

    def test_a_result_that_the_storage_has_lost_opens_one(self):
        submitted_steps(policy=LATE_POLICY)
        taken = claimed(worker := WorkerFactory(), job_types=("steps",))
        heartbeat.report(lease_ulid=taken.lease.lease_ulid, worker=worker, phase="executing")
        job_end.complete(lease_ulid=taken.lease.lease_ulid, worker=worker, exit_code=0)
        late_results.settle(job_ulid=taken.job.job_ulid, read_result=ReadResult(FailureReason.RESULT_MISSING))
        assert Incident.objects.get().reason == "result_missing"

    def test_many_failures_in_one_call_open_one_each(self):
        project, worker = ProjectFactory(), WorkerFactory()
        for _ in range(3):
            submitted(project)
        leases = [claimed(worker).lease.lease_ulid for _ in range(3)]
        message = job_end.FailMessage(FailureReason.WORKER_ERROR)
        batch_calls.fail_many(batch_calls.messages_of(worker, dict.fromkeys(leases, message)))
        assert Incident.objects.count() == 3

    def test_a_repeated_message_opens_no_second_one(self):
        submitted()
        taken = claimed(worker := WorkerFactory())
        for _ in range(2):
            job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)
        assert Incident.objects.count() == 1

    def test_a_job_that_succeeds_costs_no_statement_more(self):
        submitted()
        taken = claimed(worker := WorkerFactory())
        with CaptureQueriesContext(connection) as queries:
            job_end.complete(
                lease_ulid=taken.lease.lease_ulid, worker=worker, ingest_run_id="run_20260317143329_bd39b25f6f31"
            )
        assert not [query for query in queries if "incident" in query["sql"]]


class TestResolving:
    def test_it_is_acknowledged_and_resolved(self):
        failed()
        ulid = Incident.objects.get().incident_ulid
        seen = acknowledge_incident(incident_ulid=ulid, cause=Cause(OPERATOR, "on it"))
        assert (seen.status, seen.acknowledged_by) == ("acknowledged", str(OPERATOR))
        done = resolve_incident(incident_ulid=ulid, cause=Cause(ALICE, "a new disk"))
        assert (done.status, done.resolved_by, done.resolution) == ("resolved", str(ALICE), "a new disk")
        assert Job.objects.get().state == "failed", "the job stays as it ended"
        assert events(done) == [
            ("incident.opened", "core:policy"),
            ("incident.acknowledged", str(OPERATOR)),
            ("incident.resolved", str(ALICE)),
        ]

    def test_a_second_call_changes_nothing(self):
        failed()
        ulid = Incident.objects.get().incident_ulid
        for actor in (OPERATOR, ALICE):
            assert acknowledge_incident(incident_ulid=ulid, cause=Cause(actor)).acknowledged_by == str(OPERATOR)
        for actor in (OPERATOR, ALICE):
            assert resolve_incident(incident_ulid=ulid, cause=Cause(actor)).resolved_by == str(OPERATOR)
        with pytest.raises(ResourceConflict):
            acknowledge_incident(incident_ulid=ulid, cause=Cause(OPERATOR))
        assert len(events(Incident.objects.get())) == 3

    def test_a_retry_resolves_it(self):
        job = failed()
        retries.retry(job_ulid=job.job_ulid, actor=ALICE, reason="again")
        incident = Incident.objects.get()
        assert (incident.status, incident.resolved_by, incident.resolution) == ("resolved", str(ALICE), RETRIED)
        assert events(incident)[-1] == ("incident.resolved", str(ALICE))

    def test_a_job_that_fails_again_opens_another(self):
        job = failed()
        retries.retry(job_ulid=job.job_ulid, actor=ALICE, reason="again")
        taken = claimed(worker := WorkerFactory())
        job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)
        assert [incident.status for incident in Incident.objects.order_by("pk")] == ["resolved", "open"]

    def test_that_of_a_breaker_ends_with_the_breaker(self):
        incident = Incident.objects.create(
            kind=IncidentKind.BREAKER, org_slug="demo", job_type="runtime", summary="x", opened_at=database_now()
        )
        acknowledge_incident(incident_ulid=incident.incident_ulid, cause=Cause(OPERATOR))
        with pytest.raises(IncidentOfBreaker):
            resolve_incident(incident_ulid=incident.incident_ulid, cause=Cause(OPERATOR))

    def test_an_unknown_one_is_not_there(self):
        for change in (acknowledge_incident, resolve_incident):
            with pytest.raises(NotFound):
                change(incident_ulid="inc_01kkygkagq0jk17bx6y1w8c3df", cause=Cause(OPERATOR))

    def test_the_filters_agree_with_the_status(self):
        for _ in range(3):
            failed()
        first, second, _ = Incident.objects.order_by("pk")
        resolve_incident(incident_ulid=first.incident_ulid, cause=Cause(OPERATOR))
        acknowledge_incident(incident_ulid=second.incident_ulid, cause=Cause(OPERATOR))
        for status in ("open", "acknowledged", "resolved"):
            (found,) = Incident.objects.with_status(status)
            assert found.status == status


class TestAudit:
    def broken(self) -> list[str]:
        return [finding.code for finding in run_audit()]

    def test_an_open_incident_of_a_job_that_has_not_failed_is_found(self):
        failed()
        assert self.broken() == []
        running = submitted()
        incident = Incident.objects.get()
        Incident.objects.update(job_ulid=running.job_ulid)
        assert self.broken() == ["N1"]
        Incident.objects.update(job_ulid=incident.job_ulid)

    def test_a_resolved_incident_without_an_actor_is_found(self):
        failed()
        Incident.objects.update(resolved_at=database_now())
        assert self.broken() == ["N2"]
        Incident.objects.update(resolved_at=None)
