"""`make chaos`, its short form: a few faults, and every invariant holds."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest
import requests

from config.paths import BASE_DIR
from tests.chaos.proxy import Proxy
from tests.chaos.schedule import KINDS, schedule
from tests.chaos.workflow_ledger import WorkflowLedger
from tests.chaos.workflow_runners import JobLost, WorkflowRunner
from tests.loopback_listener import LoopbackListener
from tests.orchestrator.protocols.shithub.runner import ClaimedJobClient, RunnerClient
from tests.workers.agent.worker_process import processes_with

pytestmark = pytest.mark.slow


def test_the_seed_repeats_the_schedule():
    assert schedule(7, 300) == schedule(7, 300) != schedule(8, 300)
    assert schedule(7, 20) == schedule(7, 300)[: len(schedule(7, 20))]
    assert {fault.kind for fault in schedule(7, 140)} == set(KINDS)


class Answering(LoopbackListener):
    """A server that answers each request with nothing."""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


def test_the_proxy_uses_each_server_and_passes_over_one_that_is_dead():
    with Answering() as first, Answering() as second, socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # it does not listen, and no other process gets the port
        ports = [urlsplit(server.url).port for server in (first, second)]
        for servers, is_used in ((ports, [True, True]), ([dead.getsockname()[1], ports[1]], [False, True])):
            with Proxy([("127.0.0.1", port) for port in servers], seed=1) as proxy:
                proxy.faithful = True
                assert {requests.get(proxy.url, timeout=10).status_code for _ in range(20)} == {204}
                assert [number > 0 for number in proxy.connections] == is_used


class Answers:
    """Answers the requests of a runner of workflow jobs with these statuses, by the end of their path."""

    def __init__(self, statuses: dict[str, int]) -> None:
        self._statuses = statuses

    def generic(self, _method: str, path: str, *_: object, **__: object) -> requests.Response:
        response = requests.Response()
        response.status_code = self._statuses[path.rpartition("/")[2]]
        response._content = b'{"token": "next"}'
        return response


def test_a_refused_status_is_excused_only_if_the_runner_has_lost_its_job():
    for token, renews, is_wrong in ((404, True, False), (200, True, True), (404, False, True)):
        ledger = WorkflowLedger()
        runner = WorkflowRunner("", "registration", ledger, Random(1), renews=renews)
        client = RunnerClient("registration", Answers({"status": 400, "token": token}))  # type: ignore[arg-type]
        runner._client = client
        with pytest.raises(JobLost):
            runner._call(ClaimedJobClient(client, {"job": {"id": 1}, "token": "first"}), "steps/2/status")
        assert bool(ledger.wrong) is is_wrong, (token, renews)


@pytest.mark.timeout(480)
def test_a_short_run_loses_nothing_and_leaves_nothing():
    command = [sys.executable, "-m", "tests.chaos", "--seconds", "13", "--seed", "727", "--workers", "2"]
    command += ["--runners", "3", "--workflow-runners", "3", "--open-jobs", "15"]
    process = subprocess.Popen(command, cwd=BASE_DIR, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=450)
    finally:
        process.send_signal(signal.SIGKILL)  # the kernel then kills the rest
        process.wait()
    assert process.returncode == 0, output
    figures = json.loads(output.splitlines()[-1])
    assert list(figures) == [
        *("seed", "jobs", "final", "double_results", "double_minutes", "lost_writes"),
        *("acknowledged_results", "lost_results", "workflow_runs", "unfinished_runs", "log_bytes", "lost_logs"),
        *("lost_artifacts", "leaks", "deliveries", "lost_deliveries", "connections", "audit", "recovery_seconds"),
    ]
    assert (figures["seed"], figures["double_results"], figures["double_minutes"]) == (727, 0, 0)
    assert (figures["lost_writes"], figures["lost_results"], figures["audit"]) == (0, 0, [])
    assert (figures["unfinished_runs"], figures["lost_logs"]) == (0, 0)
    assert (figures["lost_artifacts"], figures["leaks"]) == (0, 0)
    assert min(figures["workflow_runs"], figures["log_bytes"]) > 0
    assert figures["deliveries"] > figures["lost_deliveries"] == 0
    assert min(figures["connections"]) > 0, "both servers are used"
    assert len(figures["connections"]) == 2
    assert figures["jobs"] == figures["final"] > 0
    assert figures["acknowledged_results"] > 0
    (state,) = [line.removeprefix("in ") for line in output.splitlines() if line.startswith("in ")]
    assert not processes_with(state)
    assert not Path(state).exists()
