"""Bulk actions: counted first, applied by the operations, refused one by one, aborted, and taken over after a crash."""

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from orchestrator.bulk_actions import execution
from orchestrator.bulk_actions.actions import ACTIONS
from orchestrator.bulk_actions.execution import TARGETS, advance_bulk_action
from orchestrator.bulk_actions.models import BulkAction, BulkTarget
from orchestrator.bulk_actions.operations import (
    TargetResult,
    abort_bulk_action,
    record_bulk_progress,
    start_bulk_action,
)
from orchestrator.bulk_actions.targets import count_targets, find_targets
from orchestrator.core.cause import Cause
from orchestrator.incidents.models import Incident
from orchestrator.maintenance.pruning import PruningTask, count_old_rows
from orchestrator.processes.dispatcher import DispatcherProcess
from orchestrator.services import cancellation
from orchestrator.services.retries import retry
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, ResourceConflict
from runtime_jobs.models import Dependency, Job, JobEvent, OperatorEvent
from runtime_jobs.states import JobState
from tests.factories import (
    ALICE,
    OPERATOR,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    submitted,
    submitted_steps,
)
from tests.orchestrator.bulk_actions.world import failed_job, finish, start
from tests.suite_functions import audit_findings

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def audited(request):
    """Check the invariants after each test."""
    yield
    if {"db", "transactional_db"} & set(request.fixturenames):
        assert audit_findings(chains=True) == []


@pytest.fixture
def project(db):
    return ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))


@pytest.fixture(autouse=True)
def without_limit_of_time(monkeypatch):
    """Let a claim take as long as its targets need."""
    monkeypatch.setattr(execution, "SECONDS", float("inf"))


def progress(row):
    row.refresh_from_db()
    return str(row.status), row.total, row.done, row.refused


def test_jobs_are_counted_first_and_canceled_with_progress(project):
    for _ in range(TARGETS + 5):
        submitted(project)
    other = submitted(ProjectFactory(organization=project.organization, slug="api"))
    stranger = submitted(ProjectFactory())
    row = start(project.organization)
    assert progress(row) == ("pending", TARGETS + 5, 0, 0)
    later = submitted(project)
    advance_bulk_action()
    assert progress(row) == ("running", TARGETS + 5, TARGETS, 0)
    advance_bulk_action()
    assert progress(row) == ("completed", TARGETS + 5, TARGETS + 5, 0)
    assert advance_bulk_action() is None
    untouched = {job.job_ulid for job in (other, stranger, later)}
    assert set(Job.objects.exclude(state="canceled").values_list("job_ulid", flat=True)) == untouched
    event = JobEvent.objects.filter(event_type="job.canceled").first()
    assert (event.actor_kind, event.actor_id) == (ALICE.kind, ALICE.name)
    actions = OperatorEvent.objects.filter(target=f"bulk_action:{row.bulk_action_ulid}").order_by("id")
    assert [(event.action, event.actor) for event in actions] == [
        ("bulk_action.started", "client:alice"), ("bulk_action.completed", "core:policy"),
    ]  # fmt: skip
    assert actions[0].after == {"action": "cancel", "filter": {"project_slug": "web"}, "total": TARGETS + 5}


def test_targets_are_applied_in_the_order_of_their_jobs(project):
    jobs = [submitted(project) for _ in range(5)]
    row = start(project.organization)
    assert list(row.targets.order_by("id").values_list("subject_ulid", flat=True)) == [job.job_ulid for job in jobs]


def test_a_refused_target_is_recorded_and_the_others_are_changed(project):
    ended, waiting = submitted(project), submitted(project)
    row = start(project.organization)
    cancellation.cancel(job_ulid=ended.job_ulid, actor=ALICE, deadline_seconds=0)
    done = submitted_steps(project)
    BulkTarget.objects.filter(subject_ulid=ended.job_ulid).update(subject_ulid="rtj_" + "0" * 26)
    finish(row)
    assert progress(row) == ("completed", 2, 1, 1)
    refusal = row.targets.get(outcome="refused")
    assert (refusal.error_code, bool(refusal.detail)) == ("not_found", True)
    assert Job.objects.get(pk=waiting.pk).state == JobState.CANCELED
    assert Job.objects.get(pk=done.pk).state == JobState.QUEUED


def test_a_leased_job_is_asked_to_stop_and_an_ended_one_is_no_target(project):
    submitted(project)
    claimed(WorkerFactory())
    ended = submitted(project)
    cancellation.cancel(job_ulid=ended.job_ulid, actor=ALICE, deadline_seconds=0)
    row = finish(start(project.organization))
    assert progress(row) == ("completed", 1, 1, 0)
    assert Job.objects.exclude(pk=ended.pk).get().cancel_requested_at is not None
    assert start(project.organization).total == 0, "its cancel was requested already"


def test_failed_jobs_are_retried_once_each(project):
    jobs = [failed_job(project)[0] for _ in range(3)]
    row = start(project.organization, "retry", status="failed")
    finish(row)
    assert progress(row) == ("completed", 3, 3, 0)
    retries = Job.objects.filter(retry_of_job_ulid__isnull=False)
    assert set(retries.values_list("retry_of_job_ulid", flat=True)) == {job.job_ulid for job in jobs}
    assert start(project.organization, "retry", status="failed").total == 0


def test_replays_keep_the_order_of_their_jobs(project):
    jobs = [failed_job(project)[0] for _ in range(4)]
    row = start(project.organization, "replay", status="failed")
    retry(job_ulid=jobs[1].job_ulid, actor=ALICE, reason="test")
    finish(row)
    assert progress(row) == ("completed", 4, 3, 1)
    assert BulkTarget.objects.get(bulk_action=row, subject_ulid=jobs[1].job_ulid).error_code == "not_final"
    first, second, third = (Job.objects.get(replay_of_job_ulid=jobs[place].job_ulid) for place in (0, 2, 3))
    assert first.state == JobState.QUEUED
    waiting = Dependency.objects.order_by("pk").values_list("job_id", "on_id", "needs_success")
    assert list(waiting) == [(second.job_ulid, first.job_ulid, False), (third.job_ulid, second.job_ulid, False)]
    ACTIONS["replay"].apply(row, jobs[3].job_ulid)  # as after a crash
    assert Job.objects.filter(replay_of_job_ulid__isnull=False).count() == 3
    assert start(project.organization, "replay", project_slug="web", status="failed").total == 3, "no replays"


def test_refusals_in_a_row_cost_no_statements(project):
    """The replay before a target is found with one statement, however many targets were refused between both."""
    failed, statements = [failed_job(project)[0] for _ in range(9)], []
    for refusals, jobs in ((1, failed[:3]), (4, failed[3:])):
        row = start(project.organization, "replay", job_ids=[job.job_ulid for job in jobs])
        for job in jobs[1:-1]:
            retry(job_ulid=job.job_ulid, actor=ALICE, reason="test")
        finish(row)
        assert progress(row) == ("completed", refusals + 2, 2, refusals)
        first, last = (Job.objects.get(replay_of_job_ulid=jobs[place].job_ulid) for place in (0, -1))
        assert Dependency.objects.get(job_id=last.job_ulid).on_id == first.job_ulid
        with CaptureQueriesContext(connection) as captured:
            ACTIONS["replay"].apply(row, jobs[-1].job_ulid)
        statements.append(len(captured))
    assert statements[0] == statements[1]


def test_incidents_are_resolved_but_not_those_of_breakers(project):
    job, incident = failed_job(project)
    breaker = Incident.objects.create(
        kind="breaker", org_slug=job.org_slug, job_type="runtime", summary="x", opened_at=database_now()
    )
    row = finish(start(project.organization, "resolve", job_type="runtime"))
    assert progress(row) == ("completed", 1, 1, 0)
    incident.refresh_from_db()
    assert (incident.resolved_by, incident.resolution) == ("client:alice", "cleanup")
    breaker.refresh_from_db()
    assert breaker.resolved_at is None


def test_a_claim_without_time_is_applied_to_one_target(project, monkeypatch):
    monkeypatch.setattr(execution, "SECONDS", 0.0)
    for _ in range(2):
        submitted(project)
    row = start(project.organization)
    advance_bulk_action()
    assert progress(row) == ("running", 2, 1, 0)
    advance_bulk_action()
    assert progress(row) == ("completed", 2, 2, 0)


def test_an_aborted_action_changes_nothing_more(project):
    for _ in range(TARGETS * 2):
        submitted(project)
    row = start(project.organization)
    advance_bulk_action()
    aborted = abort_bulk_action(bulk_action_ulid=row.bulk_action_ulid, cause=Cause(OPERATOR, "wrong"))
    assert (aborted.status, aborted.aborted_by) == ("aborted", "operator:olga")
    assert advance_bulk_action() is None
    assert progress(row) == ("aborted", TARGETS * 2, TARGETS, 0)
    assert Job.objects.filter(state="canceled").count() == TARGETS
    again = abort_bulk_action(bulk_action_ulid=row.bulk_action_ulid, cause=Cause(ALICE))
    assert (again.status, again.aborted_by) == ("aborted", "operator:olga")


def test_an_action_that_is_aborted_while_it_is_applied_ends_with_true_counters(project, monkeypatch):
    for _ in range(TARGETS * 2):
        submitted(project)
    row = start(project.organization)
    apply = execution._apply

    def aborted_meanwhile(action):
        results = apply(action)
        found = abort_bulk_action(bulk_action_ulid=row.bulk_action_ulid, cause=Cause(ALICE))
        assert found.status == "aborting"
        return results

    monkeypatch.setattr(execution, "_apply", aborted_meanwhile)
    advance_bulk_action()
    assert progress(row) == ("aborted", TARGETS * 2, TARGETS, 0)
    assert advance_bulk_action() is None


def test_a_completed_action_is_not_aborted(project):
    submitted(project)
    row = finish(start(project.organization))
    with pytest.raises(ResourceConflict):
        abort_bulk_action(bulk_action_ulid=row.bulk_action_ulid, cause=Cause(ALICE))


def test_a_dispatcher_that_is_killed_is_replaced_after_its_claim(project, monkeypatch):
    [failed_job(project)[0] for _ in range(3)]
    row = start(project.organization, "retry", status="failed")
    now = database_now()

    class Killed(BaseException):
        pass

    def killed(**_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.bulk_actions.execution.record_bulk_progress", killed)
        with pytest.raises(Killed):
            advance_bulk_action(now=now)
    assert Job.objects.filter(retry_of_job_ulid__isnull=False).count() == 3, "changed, and not recorded"
    assert advance_bulk_action(now=now + timedelta(seconds=59)) is None
    advance_bulk_action(now=now + timedelta(seconds=61))
    assert progress(row) == ("completed", 3, 3, 0)
    assert Job.objects.filter(retry_of_job_ulid__isnull=False).count() == 3


def test_a_target_counts_once_whoever_records_it(project):
    submitted(project)
    row = start(project.organization)
    target = row.targets.get()
    for result in (TargetResult(target.pk), TargetResult(target.pk, "conflict", "late")):
        record_bulk_progress(bulk_action_ulid=row.bulk_action_ulid, results=[result])
    assert progress(row) == ("completed", 1, 1, 0)
    target.refresh_from_db()
    assert target.outcome == "done"
    cancellation.cancel(job_ulid=target.subject_ulid, actor=ALICE, deadline_seconds=0)


def test_an_error_of_one_target_does_not_stop_the_action(project, monkeypatch, caplog):
    first, second = submitted(project), submitted(project)
    row = start(project.organization)
    cancel = cancellation.cancel

    def broken(*, job_ulid, **arguments):
        if job_ulid == first.job_ulid:
            raise RuntimeError("planted")
        return cancel(job_ulid=job_ulid, **arguments)

    monkeypatch.setattr(cancellation, "cancel", broken)
    finish(row)
    assert progress(row) == ("completed", 2, 1, 1)
    assert row.targets.get(outcome="refused").error_code == "internal_error"
    assert "planted" in caplog.text
    assert Job.objects.get(pk=second.pk).state == JobState.CANCELED


def test_actions_advance_in_turn(project):
    for _ in range(TARGETS + 1):
        submitted(project)
    other = ProjectFactory(organization=OrganizationFactory(slug="acme"))
    submitted(other)
    first, second = start(project.organization), start(other.organization)
    for expected in (first, second, first):
        assert advance_bulk_action().pk == expected.pk
    assert advance_bulk_action() is None


def test_no_action_begins_without_a_filter_or_with_too_many_rows(project, settings):
    settings.BULK_ACTION_TARGETS = 2
    for _ in range(3):
        submitted(project)
    with pytest.raises(Invalid):
        start(project.organization)
    assert count_targets("cancel", "sandtrace", {"project_slug": "web"}, limit=2) == 3
    with pytest.raises(Invalid):
        start_bulk_action(
            organization=project.organization, action="cancel", filters={}, store_targets=lambda *_, **__: 0,
            cause=Cause(ALICE, "x"),
        )  # fmt: skip
    assert not BulkAction.objects.exists()
    assert not BulkTarget.objects.exists()


def test_open_actions_of_an_organization_are_bounded(project, settings):
    settings.BULK_ACTIONS_PER_ORGANIZATION = 1
    submitted(project)
    row = start(project.organization)
    with pytest.raises(ResourceConflict):
        start(project.organization)
    finish(row)
    assert start(project.organization).status == "completed", "nothing matches"


def test_each_member_of_a_filter_narrows(project):
    job = submitted(project)
    values = {
        "project_slug": "web", "job_type": "runtime", "status": "queued", "pool": job.pool, "git_commit": job.git_commit,
        "correlation_id": "test", "created_after": "2020-01-01T00:00:00Z", "created_before": "2999-01-01T00:00:00Z",
        "job_ids": [job.job_ulid],
    }  # fmt: skip
    wrong = {
        "project_slug": "api", "job_type": "steps", "status": "running", "pool": "other", "git_commit": "0" * 40,
        "correlation_id": "x", "created_after": "2999-01-01T00:00:00Z", "created_before": "2020-01-01T00:00:00Z",
        "job_ids": ["rtj_" + "0" * 26], "batch_id": "rtb_" + "0" * 26, "failure_reason": "timed_out",
    }  # fmt: skip
    assert find_targets("cancel", "sandtrace", values).get() == job
    for name, value in wrong.items():
        assert not find_targets("cancel", "sandtrace", {"project_slug": "web"} | {name: value}).exists(), name
    failed, incident = failed_job(project)
    right = {
        "kind": "job", "job_type": "runtime", "reason": "worker_error", "state": "open", "opened_after": "2020-01-01T00:00:00Z",
        "opened_before": "2999-01-01T00:00:00Z", "incident_ids": [incident.incident_ulid],
    }  # fmt: skip
    assert find_targets("resolve", failed.org_slug, right).get() == incident
    for name, value in {"kind": "replay", "job_type": "steps", "reason": "timed_out", "state": "acknowledged"}.items():
        assert not find_targets("resolve", failed.org_slug, right | {name: value}).exists(), name


def test_old_actions_are_deleted_with_their_targets(project):
    submitted(project)
    old, young = finish(start(project.organization)), start(project.organization)
    BulkAction.objects.filter(pk=old.pk).update(finished_at=database_now() - timedelta(days=91))
    names = ("bulk_targets", "bulk_actions")
    counted = count_old_rows()
    deleted = PruningTask().delete_all()
    assert [deleted[name] for name in names] == [counted[name] for name in names] == [1, 1]
    assert list(BulkAction.objects.values_list("pk", flat=True)) == [young.pk]


def test_every_action_has_an_operation():
    assert list(ACTIONS) == ["cancel", "retry", "replay", "resolve"]


@pytest.mark.django_db(transaction=True)
def test_the_dispatcher_applies_bulk_actions():
    project = ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))
    for _ in range(3):
        submitted(project)
    row = start(project.organization)
    DispatcherProcess(connections=5, poll_seconds=0.02).run_due()
    assert progress(row) == ("completed", 3, 3, 0)


@pytest.mark.django_db(transaction=True)
def test_two_dispatchers_share_no_target():
    project = ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))
    for _ in range(TARGETS * 2):
        submitted(project)
    row = start(project.organization)
    barrier, advanced = threading.Barrier(2), []

    def dispatch():
        try:
            connection.ensure_connection()
            barrier.wait(60)
            while advance_bulk_action() is not None:
                advanced.append(1)
        finally:
            connection.close()

    threads = [threading.Thread(target=dispatch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    finish(row)
    assert progress(row) == ("completed", TARGETS * 2, TARGETS * 2, 0)
    assert JobEvent.objects.filter(event_type="job.canceled").count() == TARGETS * 2
