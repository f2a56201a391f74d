"""Schedules start runs of the default branch, once for each time, whatever the number of processes."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError, connection

from orchestrator.repositories.errors import GitFailed
from orchestrator.repositories.mirrors import update_mirror
from orchestrator.workflows import schedules
from orchestrator.workflows.files import parse_file_at
from orchestrator.workflows.schedules import fire_schedules, store_schedules
from runtime_jobs.errors import QuotaContended
from runtime_jobs.models import WorkflowRun, WorkflowSchedule
from tests.orchestrator.repositories.world import mirrored
from tests.workflow_runs import workflow_text

FILE = ".shithub/workflows/nightly.yml"
NIGHTLY = workflow_text({"a": None}, on="{schedule: [{cron: '0 4 * * *'}, {cron: '30 4 * * 1'}]}")
MIDNIGHT = datetime(2026, 5, 10, tzinfo=UTC)  # a Sunday


@pytest.fixture
def scheduled(repository, origin):
    """A repository whose schedules were stored at midnight."""
    commit = origin.commit({FILE: NIGHTLY.encode()})
    update_mirror(repository)
    store_schedules(repository, {FILE: parse_file_at(repository, commit, FILE).workflow}, now=MIDNIGHT)
    repository.commit = commit
    return repository


def at(hour, minute=0, day=0):
    return MIDNIGHT + timedelta(days=day, hours=hour, minutes=minute)


@pytest.mark.django_db
def test_a_schedule_fires_at_its_time(scheduled):
    assert fire_schedules(now=at(3, 59)) == 0
    assert fire_schedules(now=at(4)) == 1
    run = WorkflowRun.objects.get()
    assert (run.event, run.head_sha, run.head_ref, run.event_payload) == (
        "schedule", scheduled.commit, "refs/heads/main", {},
    )  # fmt: skip
    assert (run.trigger_id, run.actor) == ("schedule:0 4 * * *:2026-05-10T04:00Z", "schedule")
    assert fire_schedules(now=at(4)) == 0
    assert fire_schedules(now=at(4, 30, day=1)) == 2
    assert WorkflowRun.objects.count() == 3


@pytest.mark.django_db
def test_each_time_of_a_long_cron_expression_fires(repository, origin):
    minutes, hours = ",".join(map(str, range(60))), ",".join(map(str, range(10)))
    crons = [f"{minutes} {hours} * * {day}" for day in ("*", "0")]
    assert all(190 < len(cron) <= 200 for cron in crons)
    on = f"{{schedule: [{{cron: '{crons[0]}'}}, {{cron: '{crons[1]}'}}]}}"
    commit = origin.commit({FILE: workflow_text({"a": None}, on=on).encode()})
    update_mirror(repository)
    store_schedules(repository, {FILE: parse_file_at(repository, commit, FILE).workflow}, now=MIDNIGHT)
    assert [fire_schedules(now=at(0, minute)) for minute in (1, 2)] == [2, 2]
    assert WorkflowRun.objects.count() == 4


@pytest.mark.django_db
def test_times_that_have_passed_fire_once(scheduled):
    assert fire_schedules(now=at(12, day=5)) == 2
    assert WorkflowRun.objects.count() == 2
    assert set(WorkflowSchedule.objects.values_list("next_at", flat=True)) == {at(4, day=6), at(4, 30, day=8)}


@pytest.fixture
def failing(monkeypatch):
    """Returns a function that lets the start of a repository's schedules fail with an error, or with None succeed."""
    errors, start = {}, schedules._start

    def start_or_fail(row):
        if (error := errors.get(row.repository_id)) is not None:
            raise error
        start(row)

    monkeypatch.setattr(schedules, "_start", start_or_fail)
    return lambda repository, error: errors.update({repository.pk: error})


ERRORS = [GitFailed("no memory"), QuotaContended("busy"), ValueError("unexpected")]


@pytest.mark.django_db
@pytest.mark.parametrize("error", ERRORS)
def test_a_time_whose_run_cannot_be_started_is_tried_for_an_hour(scheduled, failing, caplog, error):
    failing(scheduled, error)
    assert fire_schedules(now=at(4)) == 1
    assert WorkflowSchedule.objects.filter(next_at=at(4)).exists()
    assert f"it is tried again: {error}" in caplog.text
    failing(scheduled, None)
    assert fire_schedules(now=at(4, 59)) == 1
    assert WorkflowRun.objects.get().trigger_id == "schedule:0 4 * * *:2026-05-10T04:00Z"
    failing(scheduled, error)
    assert fire_schedules(now=at(4, 59, day=1)) == 2
    assert fire_schedules(now=at(5, day=1)) == 2
    assert f"is left out: {error}" in caplog.text
    assert sorted(WorkflowSchedule.objects.values_list("next_at", flat=True)) == [at(4, 30, day=1), at(4, day=2)]
    assert WorkflowRun.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("error", ERRORS)
def test_a_schedule_that_fails_stops_no_other_one(scheduled, origin, failing, monkeypatch, error):
    monkeypatch.setattr(schedules, "PAGE", 1)
    other = mirrored(origin, full_name="acme/other", project=scheduled.project)
    WorkflowSchedule.objects.create(repository=other, workflow_file=FILE, cron="0 4 * * *", next_at=at(4))
    failing(scheduled, error)
    assert fire_schedules(now=at(4)) == 2
    assert WorkflowRun.objects.get().repository == other


@pytest.mark.django_db
def test_a_lost_connection_ends_the_pass(scheduled, failing):
    failing(scheduled, OperationalError("the connection is lost"))
    with pytest.raises(OperationalError):
        fire_schedules(now=at(12))
    assert WorkflowSchedule.objects.filter(next_at=at(4)).exists()


@pytest.mark.django_db
def test_the_schedule_of_a_deleted_file_starts_nothing(scheduled, origin):
    origin.commit({"README": b"without workflows"})
    update_mirror(scheduled)
    assert fire_schedules(now=at(4)) == 1
    assert not WorkflowSchedule.objects.filter(next_at=at(4)).exists()


@pytest.mark.django_db
def test_a_schedule_that_the_file_does_not_have_any_more_starts_nothing(scheduled, origin):
    origin.commit({FILE: workflow_text({"a": None}).encode()})
    update_mirror(scheduled)
    assert fire_schedules(now=at(4)) == 1
    assert not WorkflowRun.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_schedule_fires_once_with_two_processes(scheduled):
    barrier, answers = threading.Barrier(4), []

    def fire():
        try:
            connection.ensure_connection()
            barrier.wait(timeout=60)
            answers.append(fire_schedules(now=at(4)))
        finally:
            connection.close()

    threads = [threading.Thread(target=fire) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(answers) == 4
    assert WorkflowRun.objects.count() == 1
