"""Two scheduler processes, and the leader is killed while a schedule catches up: each time has one job."""

import os
import subprocess
import sys
from datetime import timedelta

import pytest

from config.paths import BASE_DIR
from orchestrator.audit.runner import run_audit
from orchestrator.core.clock_beat import ClockBeat
from orchestrator.schedules.models import Schedule, ScheduleTick
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from tests.live_server import eventually
from tests.orchestrator.schedules.world import make_schedule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.timeout(240)]
MINUTES = 60


@pytest.fixture
def processes(database_url, tmp_path):
    """Starts scheduler processes, which end with the test."""
    environment = {**os.environ, "DATABASE_URL": database_url, "STATE_DIR": str(tmp_path / "state")}
    environment |= {"CLOCK_PERIOD_SECONDS": "0.1", "CLOCK_TAKEOVER_SECONDS": "3"}
    environment.pop("DATABASE_URL_FILE", None)
    started = []
    with (tmp_path / "clock.log").open("ab") as log:

        def start():
            command = [sys.executable, str(BASE_DIR / "manage.py"), "runclock"]
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            return started[-1]

        yield start
    for process in started:
        process.kill()
        process.wait()


def test_each_time_has_one_job_although_the_leader_is_killed(processes):
    minute = database_now().replace(second=0, microsecond=0)
    first = minute - timedelta(minutes=MINUTES)
    schedule = make_schedule(missed="all", now=first - timedelta(seconds=30))
    both = [processes(), processes()]
    eventually(lambda: ScheduleTick.objects.count() >= 5, 120)
    leader = ClockBeat.objects.get().leader
    killed = next(process for process in both if leader.endswith(f":{process.pid}"))
    killed.kill()
    killed.wait()
    eventually(lambda: Schedule.objects.get().next_at > minute, 120)
    new_leader = ClockBeat.objects.get().leader
    for process in both:  # a minute that begins now would add a job
        process.kill()
        process.wait()
    times = [tick.due_at for tick in schedule.ticks.order_by("due_at")]
    assert times[: MINUTES + 1] == [first + timedelta(minutes=number) for number in range(MINUTES + 1)]
    assert {tick.outcome for tick in schedule.ticks.all()} == {"submitted"}
    assert Job.objects.count() == len(times)
    assert not new_leader.endswith(f":{killed.pid}")
    assert run_audit(chains=True) == []
