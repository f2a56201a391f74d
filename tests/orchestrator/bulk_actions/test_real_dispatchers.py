"""Bulk actions by processes of `manage.py rundispatcher`: progress, an abort half-way, and a process that is killed.

`PROOF_BULK_JOBS` has the number of jobs: 5,000 in `make proof`."""

import contextlib
import os
import subprocess
import sys

import pytest
from django.db import connection

from config.paths import BASE_DIR
from orchestrator.audit.runner import run_audit
from orchestrator.bulk_actions.models import BulkAction, BulkTarget
from orchestrator.bulk_actions.operations import abort_bulk_action
from orchestrator.core.cause import Cause
from orchestrator.services import bulk_submit
from runtime_jobs.models import Job, JobEvent
from tests.factories import ALICE, POLICY, OrganizationFactory, PlanFactory, ProjectFactory, spec, submission
from tests.live_server import eventually, patient
from tests.orchestrator.bulk_actions.world import start

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
JOBS = int(os.environ.get("PROOF_BULK_JOBS", "400"))
SECONDS = 120 + JOBS / 10


@pytest.fixture
def dispatcher(database_url, tmp_path):
    """Starts dispatchers, which end with the test."""
    # A dispatcher waits for `locked_half_way` as long as the test needs.
    environment = {**os.environ, "DATABASE_URL": patient(database_url, 80), "STATE_DIR": str(tmp_path / "state")}
    environment.pop("DATABASE_URL_FILE", None)
    started = []
    with (tmp_path / "dispatcher.log").open("ab") as log:

        def begin():
            command = [sys.executable, str(BASE_DIR / "manage.py"), "rundispatcher"]
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            return started[-1]

        yield begin
    for process in started:
        process.kill()
        process.wait()


def queue(number):
    """So many queued jobs of one organization."""
    plan = PlanFactory(name="large", max_queued=None, submits_per_minute=None)
    project = ProjectFactory(organization=OrganizationFactory(slug="sandtrace", plan=plan))
    given = submission(project, spec())
    for first in range(0, number, 500):
        entries = [given] * min(500, number - first)
        bulk_submit.submit_many(entries, policy_for=lambda _: POLICY, default_pool="shared-linux", actor=ALICE)
    return project.organization


@contextlib.contextmanager
def locked_half_way(row):
    """Lock the job in the middle: while the block runs, no dispatcher applies the action to it or to a later one."""
    middle = BulkTarget.objects.filter(bulk_action=row).order_by("id")[JOBS // 2].subject_ulid
    with contextlib.closing(connection.copy()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT FROM runtime_jobs WHERE job_ulid = %s FOR UPDATE", [middle])
        try:
            yield
        finally:
            cursor.execute("COMMIT")


def progress(row):
    row.refresh_from_db()
    return row.done + row.refused


def test_many_jobs_are_canceled_with_progress_although_a_dispatcher_is_killed(dispatcher):
    row = start(queue(JOBS))
    assert row.total == JOBS
    with locked_half_way(row):
        killed = dispatcher()
        eventually(lambda: progress(row) > 0, SECONDS)
        killed.kill()
        killed.wait()
    seen = {progress(row)}
    assert max(seen) < JOBS
    # The claim of the killed process would end in a minute.
    BulkAction.objects.update(claimed_until=None)
    dispatcher()
    eventually(lambda: seen.add(progress(row)) or row.finished_at, SECONDS)
    assert (row.status, row.done, row.refused) == ("completed", JOBS, 0)
    assert len(seen) > 1, "the progress is visible"
    assert Job.objects.filter(state="canceled").count() == JOBS
    assert JobEvent.objects.filter(event_type="job.canceled").count() == JOBS
    assert run_audit(chains=True) == []


def test_an_abort_half_way_leaves_the_rest(dispatcher):
    row = start(queue(JOBS))
    with locked_half_way(row):
        dispatcher()
        eventually(lambda: progress(row) > 0, SECONDS)
        abort_bulk_action(bulk_action_ulid=row.bulk_action_ulid, cause=Cause(ALICE))
    eventually(lambda: progress(row) and row.status == "aborted", SECONDS)
    assert 0 < row.done < JOBS
    assert Job.objects.filter(state="canceled").count() == row.done
    assert Job.objects.filter(state="queued").count() == JOBS - row.done
    assert run_audit(chains=True) == []
