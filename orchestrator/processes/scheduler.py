"""The scheduler process: several may run, one leads and runs the periodic tasks, the others stand by."""

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from django.conf import settings
from django.db import connection

from leases.scheduling import periodic
from leases.scheduling.generations import Generations
from leases.scheduling.pruning import IdlePruner
from orchestrator.core.metrics_aggregation import EventCounter
from orchestrator.core.row_batches import RowRunner
from orchestrator.evidence.replay_tasks import compare_ended_replays
from orchestrator.evidence.tasks import CheckpointTask, chain_operator_events
from orchestrator.http.api.schedule_jobs import configured_submitter
from orchestrator.maintenance import counters, leases, queues
from orchestrator.maintenance.pruning import PruningTask
from orchestrator.processes.background import DailyCollector, ResultReader, collect_outputs, collect_registry
from orchestrator.processes.leadership import Leadership, LeadershipLost
from orchestrator.schedules.due import submit_due_jobs
from runtime_jobs.db_errors import is_connection_lost, log_level_of

log = logging.getLogger(__name__)

SLOW_EVERY = 10  # rounds
MIN_PAUSE = 0.05  # between two looks at what is due
LOOK_SECONDS = 0.1  # between two looks for queues that become due: a limit may have been reached since the last one
BEAT_SECONDS = 1.0  # between two beats, also within a long round and between two rounds
STOP_SECONDS = 5.0  # at the end a result that is being read has this long
YIELD_SECONDS = 5.0  # a stand-by has this long to take over from a leader whose task fails
FAILED_RUNS_TO_YIELD, MAX_FAILED_RUNS_TO_YIELD = 3, 120


@dataclass(frozen=True)
class Task:
    """A periodic task. `run` gets the runner of its rows; what it raises fails this run of this task only."""

    name: str
    run: Callable[[RowRunner], Any]
    every: int = 1  # rounds


TASKS = (
    Task("force_cancels", leases.force_cancels),
    Task("expire_leases", leases.expire_leases),
    Task("time_out_phases", leases.time_out_phases),
    Task("give_up_lost", leases.give_up_lost),
    Task("follow_ended_dependencies", leases.follow_ended_dependencies),
    Task("compare_ended_replays", compare_ended_replays),
    Task("submit_due_jobs", lambda rows: submit_due_jobs(rows, submitter=configured_submitter())),
    *(Task(run.__name__, run) for run in queues.EVERY_ROUND),
    *(Task(run.__name__, run, every=SLOW_EVERY) for run in queues.SLOW),
)


class Scheduler:
    """Runs the tasks from one thread on one connection, `run()` until `stopping` is set. Stores have other threads.

    A leader that cannot do its work lets another process try: it stops leading when its connection is lost, and for
    YIELD_SECONDS when a task fails several times in a row. Without a stand-by it leads again afterwards, and tolerates
    twice as many failures, so that one broken task does not stop the others half of the time.
    """

    def __init__(self, *, period: float, tasks: tuple[Task, ...] = TASKS) -> None:
        self.period = period
        self.stopping = threading.Event()
        self.name = f"{socket.gethostname()}:{os.getpid()}"[-100:]
        self.rounds = 0
        self.leadership = Leadership(self.name, takeover_seconds=settings.CLOCK_TAKEOVER_SECONDS)
        self._counts = counters.PendingCounts()
        self._results = ResultReader()
        self._outputs = DailyCollector("output-collector", collect_outputs)
        self._images = DailyCollector("image-collector", collect_registry)
        tally, retention, idle_lanes = EventCounter(), PruningTask(), IdlePruner()
        checkpoints, generations = CheckpointTask(), Generations()
        own = (
            Task("read_results_again", self._results.advance),
            Task("renew_generations", lambda _: generations.renew()),
            Task("delete_old_rows", partial(self._delete_old_rows, retention), every=SLOW_EVERY),
            Task("delete_idle_lanes", lambda _: idle_lanes.advance(), every=SLOW_EVERY),
            Task("delete_unnamed_outputs", lambda _: self._outputs.advance(), every=SLOW_EVERY),
            Task("delete_unused_images", lambda _: self._images.advance(), every=SLOW_EVERY),
            Task("chain_operator_events", chain_operator_events),
            Task("write_checkpoints", lambda _: checkpoints.advance()),
            Task("count_metrics", lambda _: tally.go_on()),
            Task("write_counters", lambda _: self._counts.write()),
        )
        self.tasks = (*tasks, *own)
        self._rows = {task.name: RowRunner(task.name, before_each=self._beat_if_due) for task in self.tasks}
        self._failed_runs = dict.fromkeys(self._rows, 0)
        self._failed_runs_to_yield = FAILED_RUNS_TO_YIELD
        self._beat_due = 0.0
        self._due_at = inf  # when the next queue is due
        self._may_lead_from = 0.0

    def run(self, *, once: bool = False) -> None:
        """Run rounds until `stopping` is set, or one. Leadership is released at the end."""
        try:
            while not self.stopping.is_set():
                self._guarded(self.round)
                if once:
                    self._results.wait()
                    return
                self._wait()
        finally:
            self._guarded(self.leadership.release)
            for work in (self._results, self._outputs, self._images):
                work.stop(STOP_SECONDS)

    def round(self) -> bool:
        """Write the beat, then run the tasks that are due, if this process leads. Returns whether it does."""
        if time.monotonic() < self._may_lead_from:
            return False
        led_before = self.leadership.term is not None
        if not self.leadership.hold():
            return False
        self._beat_due = time.monotonic() + BEAT_SECONDS
        if not led_before:
            self._counts.add(counters.TAKEOVERS)
        for task in self.tasks:
            # A task that failed is tried in each round, so that a lasting failure is known soon.
            if self.rounds % task.every == 0 or self._failed_runs[task.name]:
                self._beat_if_due()
                self._run_task(task)
            if self.stopping.is_set():
                break
        self.rounds += 1
        self._yield_if_failing()
        return True

    def _run_task(self, task: Task) -> None:
        rows = self._rows[task.name]
        rows.begin()
        has_failed = False
        try:
            task.run(rows)
        except Exception as error:
            if isinstance(error, LeadershipLost) or is_connection_lost(error):
                raise
            has_failed = True
            log.exception("task %s failed; the next round tries it again", task.name)
        finally:
            self._counts.add(counters.ROW_FAILURES, task.name, rows.failed_rows)
            rows.failed_rows = 0
        if has_failed or rows.has_failed:
            self._failed_runs[task.name] += 1
            self._counts.add(counters.TASK_FAILURES, task.name)
        elif not rows.waits_for_failed_rows:
            self._failed_runs[task.name] = 0

    def _yield_if_failing(self) -> None:
        failing = [name for name, runs in self._failed_runs.items() if runs >= self._failed_runs_to_yield]
        if not any(self._failed_runs.values()):
            self._failed_runs_to_yield = FAILED_RUNS_TO_YIELD
        if not failing:
            return
        log.error("%s failed %d times in a row: another scheduler may lead", failing[0], self._failed_runs[failing[0]])
        self._failed_runs = dict.fromkeys(self._failed_runs, 0) | dict.fromkeys(failing, 1)
        self._failed_runs_to_yield = min(self._failed_runs_to_yield * 2, MAX_FAILED_RUNS_TO_YIELD)
        self.leadership.release()
        self._may_lead_from = time.monotonic() + YIELD_SECONDS

    def _delete_old_rows(self, retention: PruningTask, rows: RowRunner) -> None:
        rows.failed_rows += len(retention.delete_some(report=self._deleted, before_step=self._beat_if_due))

    def _deleted(self, table: str, rows: int) -> None:
        self._counts.add(counters.RETENTION_DELETED, table, rows)
        self._beat_if_due()

    def _beat_if_due(self) -> None:
        if time.monotonic() >= self._beat_due:
            self.leadership.renew()
            self._beat_due = time.monotonic() + BEAT_SECONDS

    def _wait(self) -> None:
        """Wait for the next round; a leader writes its beat meanwhile, and unblocks the queues that become due."""
        end = time.monotonic() + self.period * random.uniform(0.8, 1.2)  # noqa: S311 jitter
        while not self.stopping.is_set() and (left := end - time.monotonic()) > 0:
            pause = LOOK_SECONDS if self._guarded(self._look_for_due) else BEAT_SECONDS  # without a database less often
            until_due = max(MIN_PAUSE, self._due_at - time.monotonic())
            self.stopping.wait(min(left, pause, until_due))
            if self.leadership.term is not None:
                self._guarded(self._beat_if_due)
                self._guarded(self._activate_due)

    def _look_for_due(self) -> None:
        self._due_at = inf
        if self.leadership.term is not None:
            self._due_at = time.monotonic() + periodic.seconds_to_next_due()

    def _activate_due(self) -> None:
        """Unblock what is due now: `nextEligibleAt` of its jobs has come."""
        if time.monotonic() >= self._due_at:
            periodic.activate_due()

    def _guarded(self, step: Callable[[], Any]) -> bool:
        """Call a step, and return whether it succeeded.

        Nothing that it raises ends the process. A session in which something failed is closed for good.
        """
        try:
            step()
        except LeadershipLost as lost:
            log.warning("%s", lost)
        except Exception as error:
            if is_connection_lost(error):
                log.log(log_level_of(error), "the session has ended: %s", str(error).strip())
            else:
                log.exception("a round failed")
            _close()
        else:
            return True
        return False


def _close() -> None:
    try:
        connection.close()
    except Exception:
        log.exception("the connection could not be closed")
