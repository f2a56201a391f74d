"""Pairs of operations that race for one job: both wait for its row, in a known order, and one of them ends the job.

The test holds the row of the job. The first operation waits for it between its first statement and its decision, then
the second one behind it. PostgreSQL grants the lock in that order.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from leases.models import Lease
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.job_tokens.models import UsedToken
from orchestrator.services import actions_runners, batches, cancellation, expiry
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.states import JobState
from tests.factories import OPERATOR
from tests.live_server import eventually
from tests.orchestrator.protocols.shithub.runner import ClaimedJobClient, RunnerClient
from tests.orchestrator.protocols.shithub.test_job_calls import spare
from tests.orchestrator.protocols.shithub.world import register, start_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
FINAL_EVENTS = ("job.completed", "job.failed", "job.canceled")


@pytest.fixture(autouse=True)
def audited() -> Iterator[None]:
    """The audit of the database finds nothing after each race."""
    yield
    assert run_audit(chains=True) == []


@dataclass
class Race:
    """A job in execution, and one token for each call."""

    name: str
    claimed: ClaimedJobClient
    job_ulid: str
    tokens: list[str]

    @property
    def job(self) -> Job:
        return Job.objects.get(job_ulid=self.job_ulid)

    def post(self, path: str, body: Any, token: str | None = None) -> Any:
        client = RunnerClient(self.claimed.runner.registration)  # test clients are not made for threads
        return client.post(f"{self.claimed.path}/{path}", body, token=token or self.tokens.pop())

    def end(self, status: str, conclusion: str) -> Any:
        return self.post("status", {"status": status, "conclusion": conclusion})

    def heartbeat(self) -> Any:
        return RunnerClient(self.claimed.runner.registration).heartbeat(labels=["none"], active_job_ids=[])

    def revoke(self) -> Any:
        return actions_runners.revoke_runner(name=self.name, cause=Cause(OPERATOR, "race"))

    def cancel(self, deadline_seconds: float = 30) -> Any:
        return cancellation.cancel(job_ulid=self.job_ulid, actor=OPERATOR, deadline_seconds=deadline_seconds)

    def expire_lease(self) -> None:
        Lease.objects.filter(job__job_ulid=self.job_ulid).update(expires_at=database_now() - timedelta(seconds=1))

    def exceed_timeout(self) -> None:
        Job.objects.filter(job_ulid=self.job_ulid).update(executing_at=database_now() - timedelta(seconds=361))

    def request_cancel(self) -> None:
        self.cancel(deadline_seconds=0)

    def prepare_nothing(self) -> None:
        """Leave the job as it is."""


@dataclass(frozen=True)
class Operation:
    """An operation on a job, and a preparation that makes it due."""

    act: Callable[[Race], Any]
    prepare: Callable[[Race], None] = Race.prepare_nothing


ENDS: dict[str, Operation] = {
    "success": Operation(lambda race: race.end("completed", "success")),
    "failure": Operation(lambda race: race.end("completed", "failure")),
    "own cancel": Operation(lambda race: race.end("cancelled", "cancelled")),
    "list without the job": Operation(Race.heartbeat),
    "revoke runner": Operation(Race.revoke),
    "expire": Operation(lambda race: expiry.expire(job_ulid=race.job_ulid), Race.expire_lease),
    "time out": Operation(lambda race: expiry.time_out(job_ulid=race.job_ulid), Race.exceed_timeout),
    "force cancel": Operation(lambda race: expiry.force_cancel(job_ulid=race.job_ulid), Race.request_cancel),
}
OTHERS: dict[str, Operation] = {
    "cancel": Operation(Race.cancel),
    "step": Operation(lambda race: race.post(f"steps/{race.claimed.steps[0]['id']}/status", {"status": "running"})),
    "log": Operation(lambda race: race.post("logs", {"seq": 0, "chunk": "aGVsbG8K"})),
    "new chain": Operation(lambda race: race.post("token", {}, race.claimed.runner.registration)),
}
ALL = ENDS | OTHERS


def prepared(name: str = "runner-1") -> Race:
    """A job that a new runner has begun."""
    runner = register(name)
    started = start_run()
    claimed = runner.client.claim()
    assert claimed.run().status_code == 200
    return Race(name, claimed, started.job.job_ulid, spare(claimed))


def in_order(job_ulid: str, *acts: Callable[[], Any]) -> list[Any]:
    """Call the functions in threads. Each waits for the row of the job, or has ended, before the next one begins."""
    results: list[Any] = [None] * len(acts)

    def run(number: int, act: Callable[[], Any]) -> None:
        try:
            results[number] = act()
        except LifecycleError as refusal:
            results[number] = refusal
        except BaseException as error:  # noqa: BLE001 raised below
            results[number] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(acts)]
    with transaction.atomic():
        Job.objects.select_for_update().get(job_ulid=job_ulid)
        for number, thread in enumerate(threads, 1):
            thread.start()
            eventually(lambda number=number: _waiting() + sum(not one.is_alive() for one in threads[:number]) >= number)
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, LifecycleError):
            raise result
    return results


def _waiting() -> int:
    """Return how many processes of this database wait for a lock."""
    query = """SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()"""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # a transaction sees one snapshot of all processes otherwise
        cursor.execute(query)
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("first", ALL)
def test_one_of_two_operations_ends_the_job(first):
    """All pairs in one test for each first operation: emptying the tables between tests takes longer than a race."""
    for number, second in enumerate(ALL if first in ENDS else ENDS):
        race = prepared(f"runner-{number}")
        for prepare in dict.fromkeys([ALL[first].prepare, ALL[second].prepare]):
            prepare(race)
        used = UsedToken.objects.count()
        acts = [lambda name=name, race=race: ALL[name].act(race) for name in (first, second)]
        results = in_order(race.job_ulid, *acts)
        _require_one_end(race, second)
        _require_used_tokens(race, UsedToken.objects.count() - used, results, second)


def _require_one_end(race: Race, second: str) -> None:
    assert race.job.is_final, second
    assert JobEvent.objects.filter(job__job_ulid=race.job_ulid, event_type__in=FINAL_EVENTS).count() == 1, second
    assert not Lease.objects.open().filter(job__job_ulid=race.job_ulid).exists(), second
    assert {step.is_ended for step in race.job.steps.all()} == {True}, second


def _require_used_tokens(race: Race, used: int, results: list[Any], second: str) -> None:
    """A call that counts has used its token, and no other has."""
    responses = [result for result in results if hasattr(result, "status_code")]
    assert {response.status_code for response in responses} <= {200, 202, 204, 400, 401, 404}, second
    paths = [(response.request["PATH_INFO"], response.status_code) for response in responses]
    calls = [code for path, code in paths if path.startswith(race.claimed.path) and not path.endswith("/token")]
    assert used == sum(code in {200, 202, 400} for code in calls), second


@pytest.mark.parametrize("first", ["claim", "revoke runner"])
def test_a_claim_against_the_revocation_of_its_runner(first):
    """Whoever comes second sees the other: no revoked runner has a job."""
    runner = register()
    started = start_run()
    acts = {
        "claim": lambda: RunnerClient(runner.client.registration).heartbeat(),
        "revoke runner": lambda: actions_runners.revoke_runner(name="runner-1", cause=Cause(OPERATOR, "race")),
    }
    order = [first, *(name for name in acts if name != first)]
    in_order(started.job.job_ulid, *(acts[name] for name in order))
    job = Job.objects.get()
    assert not Lease.objects.open().exists()
    assert job.state == JobState.QUEUED, "a claim that was not begun costs no attempt"
    assert job.attempt == 1


def test_a_cancel_of_a_waiting_job_against_its_claim():
    runner = register()
    started = start_run()
    results = in_order(
        started.job.job_ulid,
        lambda: cancellation.cancel(job_ulid=started.job.job_ulid, actor=OPERATOR, deadline_seconds=30),
        lambda: RunnerClient(runner.client.registration).heartbeat(),
    )
    job = Job.objects.get()
    assert results[1].status_code in {200, 204}
    if results[1].status_code == 200:  # claims skip locked rows: the cancel then meets a job that was claimed
        assert job.cancel_requested_at is not None
    else:
        assert job.state == JobState.CANCELED


@pytest.mark.parametrize("first", ["end", "cancel"])
def test_the_cancel_of_a_run_against_the_end_of_its_last_job(first):
    race = prepared()
    batch = race.job.batch
    acts = {
        "end": lambda: race.end("completed", "success"),
        "cancel": lambda: batches.cancel_batch(batch_ulid=batch.batch_ulid, actor=OPERATOR, deadline_seconds=30),
    }
    order = [first, *(name for name in acts if name != first)]
    results = dict(zip(order, in_order(race.job_ulid, *(acts[name] for name in order)), strict=True))
    assert results["end"].status_code == 200
    assert results["end"].json()["run_conclusion"] == "success", "a success before the deadline counts"
    assert Job.objects.get().state == JobState.SUCCEEDED
