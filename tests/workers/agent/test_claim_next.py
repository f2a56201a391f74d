"""A final message that claims the next job for its slot, on a scripted server and on the real one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from leases.models import Lease
from leases.states import LeaseState
from orchestrator.audit.runner import run_audit
from orchestrator.services import worker_state
from runtime_jobs.models import Job, JobEvent, Project
from runtime_jobs.states import JobState
from tests.factories import OPERATOR, ProjectFactory, WorkerFactory, submitted_steps
from tests.live_server import Server, serving
from tests.workers.agent.benches import a_bench
from tests.workers.agent.conftest import claim_body
from tests.workers.agent.scripted import (
    Answer,
    Asked,
    Handler,
    Script,
    ScriptedServer,
    hang_up,
    problem,
    stale,
    wait_until,
)
from workers.agent import retry
from workers.agent.claim_loop import ClaimLoop
from workers.agent.context import WorkerContext
from workers.agent.credentials import TokenFile
from workers.agent.errors import ServerUnreachable
from workers.agent.http.client import ClaimOffer, OrchestratorClient
from workers.agent.job_runner import JobRunner
from workers.agent.slots import WorkerSlots
from workers.engines.null import FLAG, NullEngine
from workers.models import Worker

NONE = Answer(204)
CAPABILITIES = {"namespaces": False, "restricted": False, "linux": True}


@pytest.fixture(autouse=True)
def _null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FLAG, "1")
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: 0.02)


def offer(worker_id: str = "wrk_01jworker") -> ClaimOffer:
    return ClaimOffer(worker_id, "shared-linux", CAPABILITIES)


class Stage:
    """A claim loop with one slot or more, whose jobs the null engine runs."""

    def __init__(self, context: WorkerContext, folder: Path, offered: ClaimOffer, capacity: int = 1) -> None:
        self.slots = WorkerSlots(capacity, folder / "slots")
        self.loop = ClaimLoop(
            client=context.client,
            offer=offered,
            slots=self.slots,
            unready=context.unready,
            start_attempt=lambda claimed: JobRunner(context, claimed.lease, claimed.slot, claimed.next_claim),
            wait_seconds=0.1,
        )
        self.thread = threading.Thread(target=self.loop.run, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def end(self) -> None:
        """Wait for the end of a loop that stops."""
        self.thread.join(30)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def a_stage(context: WorkerContext, folder: Path, offered: ClaimOffer, capacity: int = 1) -> Iterator[Stage]:
    stage = Stage(context, folder, offered, capacity)
    yield stage
    stage.loop.abandon()
    if stage.thread.ident is not None:
        stage.end()
    stage.slots.close()


@pytest.fixture
def bench(server: ScriptedServer, client: OrchestratorClient, open_dir: Path) -> Iterator[WorkerContext]:
    server.on("leases", Answer(204, wait=0.02))
    with a_bench(server, client, open_dir, NullEngine()) as context:
        yield context


@pytest.fixture
def stage(bench: WorkerContext, tmp_path: Path) -> Iterator[Stage]:
    with a_stage(bench, tmp_path, offer()) as made:
        yield made


def lease_of(number: int, *words: str) -> dict[str, Any]:
    """A lease for a job of one step, as a server sends it."""
    steps = {
        "steps": [" ".join(["null", *words])],
        "timeout_seconds": 60,
        "allow_network": False,
        "least_isolation": "none",
    }
    body = claim_body(
        job_id=f"rtj_{number}", job_type="steps", source=None, steps=steps, heartbeat_interval_seconds=0.2
    )
    return body | {"lease_id": f"rtl_{number}"}


def ended(next_lease: dict[str, Any] | None) -> Answer:
    return Answer(200, {"job_id": "rtj_1", "status": "succeeded", "next_lease": next_lease})


def then(act: Callable[[], None], answer: Script) -> Script:
    """Act while the worker waits for the answer."""

    def script(handler: Handler, asked: Asked) -> None:
        act()
        if isinstance(answer, Answer):
            handler.answer(answer)
        else:
            answer(handler, asked)

    return script


def of(server: ScriptedServer, call: str) -> list[str]:
    """The leases that a call was about."""
    return [asked.path.split("/")[-2] for asked in server.received(call)]


def claims_of(server: ScriptedServer, call: str = "complete") -> list[bool]:
    return ["claim_next" in asked.json for asked in server.received(call)]


@pytest.mark.parametrize(
    ("words", "call"), [(["exit=0"], "complete"), (["exit=1"], "fail"), (["sandbox-failed"], "fail")]
)
def test_the_next_lease_comes_with_the_final_message(
    stage: Stage, server: ScriptedServer, words: list[str], call: str
) -> None:
    server.on("leases", Answer(201, lease_of(1, *words)), Answer(204, wait=0.02))
    server.on(call, ended(lease_of(2, *words)), ended(None))
    stage.start()
    wait_until(lambda: len(server.received("leases")) > 1)
    assert of(server, call) == of(server, "acknowledge") == ["rtl_1", "rtl_2"]
    calls = server.calls
    assert calls[: calls.index("leases", 1)].count(call) == 2, "no claim in between, and one after null"
    claim = server.received("leases")[0].json
    assert server.received(call)[0].json["claim_next"] == {k: v for k, v in claim.items() if k != "wait_seconds"}


def test_the_next_job_runs_in_the_slot_that_became_free(bench: WorkerContext, server: ScriptedServer, tmp_path: Path):
    """The null engine refuses a second job in a slot that still runs one."""
    server.on("leases", Answer(201, {"leases": [lease_of(1), lease_of(2, "sleep=60")]}), NONE)
    server.on("complete", *(ended(lease_of(number)) for number in range(3, 8)), ended(None))
    with a_stage(bench, tmp_path, offer(), capacity=2) as stage:
        stage.start()
        wait_until(lambda: len(server.received("complete")) == 6)
        assert of(server, "complete") == ["rtl_1", *(f"rtl_{number}" for number in range(3, 8))]
        assert server.received("fail") == []


def test_a_lost_response_is_sent_again_and_its_lease_runs_once(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", Answer(201, lease_of(1)), NONE)
    server.on("complete", hang_up, Answer(503), ended(lease_of(2)), ended(None))
    stage.start()
    wait_until(lambda: len(server.received("leases")) > 1)
    assert of(server, "complete") == ["rtl_1"] * 3 + ["rtl_2"]
    assert len({asked.body for asked in server.received("complete")[:3]}) == 1, "the same message with the same claim"
    assert of(server, "acknowledge") == ["rtl_1", "rtl_2"]


def test_a_heartbeat_between_a_lost_response_and_the_resend_loses_no_lease(
    stage: Stage, server: ScriptedServer
) -> None:
    def end_lease() -> None:
        known = len(server.received("heartbeat"))
        server.on("heartbeat", stale("lease_ended"))
        wait_until(lambda: len(server.received("heartbeat")) > known)
        server.closing.wait(0.2)  # until the worker has read the answer; too short a time hides a failure at most

    server.on("leases", Answer(201, lease_of(1)), NONE)
    server.on("complete", then(end_lease, hang_up), ended(lease_of(2)))
    server.on("acknowledge", Answer(), then(stage.loop.drain, stale()))
    stage.start()
    stage.end()
    assert of(server, "complete") == ["rtl_1", "rtl_1"]
    assert of(server, "acknowledge") == ["rtl_1", "rtl_2"]


def test_a_lease_of_a_lost_response_is_found_again_after_a_drain(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", Answer(201, lease_of(1)), NONE)
    server.on("complete", then(stage.loop.drain, hang_up), ended(lease_of(2)))
    stage.start()
    stage.end()
    assert claims_of(server) == [True, True]
    assert of(server, "release") == ["rtl_2"]


@pytest.mark.parametrize("stop", ["drain", "abandon"])
def test_a_lease_that_comes_while_the_worker_stops_is_released(stage: Stage, server: ScriptedServer, stop: str) -> None:
    server.on("leases", Answer(201, lease_of(1)), NONE)
    server.on("complete", then(getattr(stage.loop, stop), ended(lease_of(2))))
    server.on("release", Answer(wait=0.5))
    stage.start()
    stage.end()
    assert of(server, "release") == ["rtl_2"]
    assert server.received("release")[0].json["unable"] is False
    assert of(server, "acknowledge") == ["rtl_1"]
    assert stage.slots.take(within=0) is not None, "after the release: the process waited for it"


def test_a_worker_that_drains_claims_nothing(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", Answer(201, lease_of(1)), NONE)
    server.on("acknowledge", then(stage.loop.drain, Answer()))
    stage.start()
    stage.end()
    assert claims_of(server) == [False]


def test_once_is_one_job(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", Answer(201, lease_of(1)))
    server.on("complete", ended(lease_of(2)), ended(None))
    stage.loop.run(once=True)
    assert claims_of(server) == [False]
    assert len(server.received("leases")) == 1


def test_a_nearly_full_disk_claims_nothing(
    stage: Stage, bench: WorkerContext, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill() -> None:
        monkeypatch.setattr(bench.engine, "shortage", lambda _: "No room.", raising=True)

    server.on("leases", Answer(201, lease_of(1)))
    server.on("acknowledge", then(fill, Answer()))
    stage.start()
    wait_until(lambda: server.received("complete"))
    assert claims_of(server) == [False]


def test_while_a_claim_waits_there_is_no_second_one(
    bench: WorkerContext, server: ScriptedServer, tmp_path: Path
) -> None:
    claim_waits = threading.Event()

    def wait(handler: Handler, _: Asked) -> None:
        claim_waits.set()
        wait_until(lambda: server.received("complete"))
        handler.answer(NONE)

    server.on("leases", Answer(201, {"leases": [lease_of(1)]}), wait, NONE)
    server.on("acknowledge", then(lambda: wait_until(claim_waits.is_set), Answer()))
    with a_stage(bench, tmp_path, offer(), capacity=2) as stage:
        stage.start()
        wait_until(lambda: server.received("complete"))
        assert claims_of(server) == [False]


def refusing(answer: Answer, following: Answer) -> Script:
    """Refuse a final message with a claim."""
    return lambda handler, asked: handler.answer(answer if "claim_next" in asked.json else following)


def test_an_older_server_gets_final_messages_without_a_claim(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", Answer(201, lease_of(1)), Answer(201, lease_of(2)), NONE)
    old = Answer(200, {"job_id": "rtj_1", "status": "succeeded"})
    server.on("complete", refusing(problem(400, "invalid", errors={"claim_next": ["Unknown field."]}), old))
    stage.start()
    wait_until(lambda: len(server.received("complete")) == 3)
    assert list(zip(of(server, "complete"), claims_of(server), strict=True)) == [
        ("rtl_1", True),
        ("rtl_1", False),
        ("rtl_2", False),
    ]


def test_a_refused_claim_does_not_cost_the_result(stage: Stage, server: ScriptedServer) -> None:
    """A worker that was moved to another pool while its job ran. Its token may be put right: it asks again later."""
    server.on("leases", Answer(201, lease_of(1)), Answer(201, lease_of(2)), NONE)
    server.on("complete", refusing(problem(403, "pool_forbidden"), ended(None)))
    stage.start()
    wait_until(lambda: len(server.received("complete")) == 4)
    assert of(server, "complete") == ["rtl_1", "rtl_1", "rtl_2", "rtl_2"]
    assert claims_of(server) == [True, False, True, False]


def test_a_conflict_is_not_sent_again_and_frees_the_slot(stage: Stage, server: ScriptedServer) -> None:
    server.on("leases", Answer(201, lease_of(1)), NONE)
    server.on("complete", problem(409, "conflict"))
    stage.start()
    wait_until(lambda: len(server.received("leases")) > 1)
    assert of(server, "complete") == ["rtl_1"]


@pytest.mark.parametrize("release", [Answer(), hang_up, problem(409, "stale_lease")])
def test_a_next_lease_that_cannot_be_parsed_is_released(stage: Stage, server: ScriptedServer, release: Script) -> None:
    server.on("leases", Answer(201, lease_of(1)), NONE)
    odd = lease_of(2)
    odd["job"]["steps"]["least_isolation"] = "microvm"
    server.on("complete", ended(odd))
    server.on("release", release)
    stage.start()
    wait_until(lambda: len(server.received("leases")) > 1)
    assert of(server, "complete") == ["rtl_1"], "the final message counts"
    assert of(server, "release") == ["rtl_2"]
    assert server.received("release")[0].json["unable"] is True


# --- the real server --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), DATABASE_URL=database_url) as found:
        yield found


class Intercepted:
    """A worker of the real server, with two waiting jobs. `before` and `after` surround each `complete`."""

    def __init__(self, stage: Stage, client: OrchestratorClient) -> None:
        self.stage = stage
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.completed: list[dict[str, Any]] = []
        self._post = client._post_lease
        client._post_lease = self._intercept  # type: ignore[method-assign] # as it sends

    def _intercept(self, lease: Any, operation: str, body: Any, *more: Any) -> Any:
        if operation != "complete":
            return self._post(lease, operation, body, *more)
        self.before()
        answer = self._post(lease, operation, body, *more)
        self.completed.append(answer)
        self.after()
        return answer

    def run(self) -> None:
        self.stage.start()
        self.stage.end()


@pytest.fixture
def worker(transactional_db: None) -> Worker:
    return WorkerFactory(capacity=1)


@pytest.fixture
def jobs(worker: Worker) -> list[Job]:
    project: Project = ProjectFactory(least_isolation="none")
    return [submitted_steps(project, steps=("null exit=0",)) for _ in range(2)]


@pytest.fixture
def intercepted(
    live: Server, server: ScriptedServer, worker: Worker, jobs: list[Job], open_dir: Path, tmp_path: Path
) -> Iterator[Intercepted]:
    token = tmp_path / "live-token"
    token.write_text(f"{worker.token}\n{worker.worker_id}\n")
    token.chmod(0o600)
    client = OrchestratorClient(live.url, TokenFile(token), "01kkygkagq0jk17bx6y1w8c3df")
    with (
        contextlib.closing(client),
        a_bench(server, client, open_dir, NullEngine()) as context,
        a_stage(context, tmp_path, offer(worker.worker_id)) as stage,
    ):
        yield Intercepted(stage, client)


def states(jobs: list[Job]) -> list[str]:
    return [Job.objects.get(pk=job.pk).state for job in jobs]


def is_next(intercepted: Intercepted, job: Job) -> bool:
    """Whether the only lease of the job came with the first final message."""
    return bool(Lease.objects.get(job_id=job.job_ulid).lease_ulid == intercepted.completed[0]["next_lease"]["lease_id"])


def findings() -> list[str]:
    return [str(finding) for finding in run_audit()]


@pytest.mark.slow
def test_two_jobs_in_one_slot_are_one_claim(intercepted: Intercepted, jobs: list[Job]) -> None:
    intercepted.after = lambda: intercepted.stage.loop.drain() if len(intercepted.completed) == 2 else None
    intercepted.run()
    assert states(jobs) == [JobState.SUCCEEDED] * 2
    assert is_next(intercepted, jobs[1])
    assert [answer["next_lease"] is None for answer in intercepted.completed] == [False, True]
    assert findings() == []


@pytest.mark.slow
def test_a_lost_response_of_the_server_loses_no_lease(intercepted: Intercepted, jobs: list[Job]) -> None:
    def lose() -> None:
        if len(intercepted.completed) == 1:
            raise ServerUnreachable("lost")
        if len(intercepted.completed) == 3:
            intercepted.stage.loop.drain()

    intercepted.after = lose
    intercepted.run()
    first, again, _ = (answer["next_lease"] for answer in intercepted.completed)
    assert first["lease_id"] == again["lease_id"]
    assert states(jobs) == [JobState.SUCCEEDED] * 2
    assert is_next(intercepted, jobs[1])
    assert JobEvent.objects.filter(job_id=jobs[1].job_ulid, event_type="job.started").count() == 1
    assert findings() == []


@pytest.mark.slow
def test_a_lease_of_the_server_that_comes_too_late_is_released(intercepted: Intercepted, jobs: list[Job]) -> None:
    intercepted.after = intercepted.stage.loop.drain
    intercepted.run()
    assert states(jobs) == [JobState.SUCCEEDED, JobState.QUEUED]
    assert is_next(intercepted, jobs[1])
    assert Lease.objects.get(job_id=jobs[1].job_ulid).state == LeaseState.RELEASED
    assert findings() == []


@pytest.mark.slow
def test_a_refused_completion_claims_nothing(intercepted: Intercepted, jobs: list[Job]) -> None:
    def revoke() -> None:
        intercepted.stage.loop.drain()
        try:
            worker_state.revoke(job_ulid=jobs[0].job_ulid, actor=OPERATOR, reason="test")
        finally:
            connection.close()  # of the thread of the job

    intercepted.before = revoke
    intercepted.run()
    assert intercepted.completed == []
    assert states(jobs)[1] == JobState.QUEUED
    assert not Lease.objects.filter(job_id=jobs[1].job_ulid).exists()
    assert findings() == []
