"""Two housekeeping processes: each time of a schedule starts one run, also after one of them was killed."""

import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
from django.db import transaction

from config.paths import BASE_DIR
from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.housekeeping.queue import request_task
from orchestrator.workflows.files import parse_file_at
from orchestrator.workflows.schedules import SCHEDULE_TASK, store_schedules
from runtime_jobs.db_time import database_now
from runtime_jobs.models import WorkflowRun, WorkflowSchedule
from tests.live_server import eventually
from tests.orchestrator.repositories.world import added
from tests.orchestrator.workflows.test_schedules import FILE, NIGHTLY, at

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def scheduled(origin, db):
    """A repository whose schedules are due in a month, with the task that keeps its mirror."""
    from orchestrator.repositories.mirrors import update_mirror  # noqa: PLC0415 beside its only use
    from orchestrator.repositories.tasks import request_mirror  # noqa: PLC0415 likewise

    commit = origin.commit({FILE: NIGHTLY.encode()})
    repository = added(origin.path)
    request_mirror(repository.pk)
    update_mirror(repository)
    with transaction.atomic():  # the processes run already, and take what is due
        store_schedules(repository, {FILE: parse_file_at(repository, commit, FILE).workflow}, now=at(0))
        WorkflowSchedule.objects.update(next_at=database_now() + timedelta(days=30))
    return repository


@pytest.fixture
def processes(database_url, tmp_path, settings):
    """Two housekeeping processes, which end with the test."""
    environment = {
        **os.environ,
        "DATABASE_URL": database_url,
        "STATE_DIR": str(tmp_path / "state"),
        "MIRROR_DIR": settings.MIRROR_DIR,
        "REPOSITORY_ROOT": settings.REPOSITORY_ROOT,
    }
    command = [sys.executable, "manage.py", "runhousekeeping", "--threads", "2"]
    started = []
    with (tmp_path / "housekeeping.log").open("ab") as log:
        try:
            for _ in range(2):
                process = subprocess.Popen(command, cwd=BASE_DIR, env=environment, stdout=log, stderr=log)
                started.append(process)
            yield started
        finally:
            for process in started:
                process.kill()
                process.wait()


def run_times() -> list[str]:
    return sorted(WorkflowRun.objects.values_list("trigger_id", flat=True))


def test_each_time_of_a_schedule_starts_one_run_and_a_killed_process_is_replaced(processes, scheduled, tmp_path):
    first, second = processes
    for number, process in enumerate((None, first)):
        if process is not None:
            process.kill()
            process.wait()
        WorkflowSchedule.objects.update(next_at=at(4, day=number))
        for _ in range(5):
            request_task(SCHEDULE_TASK)
        eventually(lambda: not WorkflowSchedule.objects.filter(next_at__lt=at(4, day=30)).exists(), seconds=180)
    # Two schedules of the file, and each of both times once.
    times = run_times()
    assert len(times) == len(set(times)) == 4, times
    second.send_signal(signal.SIGTERM)
    assert second.wait(120) == 0, (tmp_path / "housekeeping.log").read_text()
    assert not HousekeepingTask.objects.filter(failures__gt=0).exists()
