"""A web process that is restarted, killed and started again under a runner that never repeats a call.

The runner makes the calls of document 003. One call that is refused costs it the job.
"""

import base64
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from config.paths import BASE_DIR
from orchestrator.core.cause import Cause
from orchestrator.services import actions_runners
from runtime_jobs.models import Job
from tests.factories import OPERATOR, PoolFactory
from tests.live_server import eventually
from tests.orchestrator.protocols.shithub.world import actions_spec, start_run

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
JOBS = int(os.environ.get("RESTART_JOBS", "6"))
CALLS_OF_A_JOB = 30  # as many parts of a log: a job lasts over a restart
STARTED = "Started server process"


class Web:
    """`serve` on a socket that this process holds, as systemd does, and the log of all its processes."""

    def __init__(self, listener: socket.socket, folder: Path, database_url: str) -> None:
        self.listener, self.log_file = listener, folder / "web.log"
        self.secret_key = folder / "secret_key"
        self.secret_key.write_text("a" * 50)
        variables = {"DATABASE_URL": database_url, "STATE_DIR": str(folder / "state"), "LISTEN_FDS": "1"}
        variables["SECRET_KEY_FILE"] = str(self.secret_key)
        self.environment = os.environ | variables | {"ACTIONS_ROOT_KEY": base64.b64encode(b"\x42" * 32).decode()}
        self.start()

    def start(self) -> None:
        descriptor = self.listener.fileno()
        # The variable has the number of the process that gets the descriptor: the shell's, which becomes the server.
        command = f'LISTEN_PID=$$; export LISTEN_PID; exec "$@" 3<&{descriptor}'
        port = str(self.listener.getsockname()[1])
        serve = [sys.executable, "manage.py", "serve", "--port", port]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", command, "bash", *serve],
                cwd=BASE_DIR,
                env=self.environment,
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        return self.log_file.read_text()

    def restart(self) -> None:
        """Send SIGHUP, and return when the process serves anew and has no other process beside it."""
        before = self.log().count(f"{STARTED} [{self.process.pid}]")
        self.process.send_signal(signal.SIGHUP)
        eventually(lambda: self.log().count(f"{STARTED} [{self.process.pid}]") > before and not self.children())
        assert self.process.poll() is None

    def children(self) -> str:
        assert self.process.poll() is None, self.log()
        return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(40) == -signal.SIGTERM, self.log()


class Runner(threading.Thread):
    """Executes jobs one after the other. It makes each call once, and stops at the first one that is not answered."""

    def __init__(self, address: str, token: str) -> None:
        super().__init__(daemon=True)
        self.address, self.registration = address, token
        self.session = requests.Session()
        self.calling = threading.Lock()  # held during each call
        self.ended = self.calls = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while self.ended < JOBS:
                self.execute()
        except BaseException as error:  # noqa: BLE001 - the test reports it
            self.failure = error

    def post(self, path: str, token: str, **body: object) -> dict[str, object]:
        headers = {"Authorization": f"Bearer {token}"}
        with self.calling:
            response = self.session.post(f"{self.address}{path}", json=body, headers=headers, timeout=60)
        assert response.status_code in {200, 202}, (response.status_code, response.text)
        self.calls += 1
        return response.json()

    def execute(self) -> None:
        claim = self.post("/api/v1/runners/heartbeat", self.registration, labels=["ubuntu-latest"], capacity=1)
        path, step = f"/api/v1/jobs/{claim['job']['id']}", claim["job"]["steps"][1]["id"]
        token = self.post(f"{path}/status", claim["token"], status="running")["next_token"]
        chunk = base64.b64encode(b"hello\n").decode()
        for number in range(CALLS_OF_A_JOB):
            token = self.post(f"{path}/logs", token, seq=number, chunk=chunk, step_id=step)["next_token"]
            token = self.post(f"{path}/cancel-check", token)["next_token"]
        ending = {"status": "completed", "conclusion": "success"}
        token = self.post(f"{path}/steps/{step}/status", token, **ending)["next_token"]
        self.post(f"{path}/status", token, **ending)
        self.ended += 1

    def advances(self, calls: int = 5) -> None:
        """Wait until it has made so many more calls, or has ended."""
        enough = self.calls + calls
        eventually(lambda: self.calls >= enough or not self.is_alive())
        assert self.failure is None


@pytest.fixture
def token() -> str:
    PoolFactory()
    _, _, found = actions_runners.register_runner(name="runner-1", cause=Cause(OPERATOR))
    return found


@pytest.fixture
def web(database_url, tmp_path) -> Iterator[Web]:
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        started = Web(listener, tmp_path, database_url)
        yield started
        started.process.kill()
        started.process.wait()
        print(started.log())  # noqa: T201 - for a test that failed


def test_restarts_refuse_no_connection_and_lose_no_job(web, token):
    """Two graceful restarts, and one kill -9: calls that come while no process is there wait for the next one."""
    started = start_run(specs=[actions_spec(job_key=f"build-{number}") for number in range(JOBS)])
    runner = Runner("http://{}:{}".format(*web.listener.getsockname()), token)
    runner.start()
    runner.advances()
    while runner.is_alive():
        number = web.process.pid
        web.restart()
        runner.advances()
        assert web.process.pid == number
        with runner.calling:  # a killed process has no answer for a call that it has begun
            web.process.kill()
            web.process.wait()
        waiting = threading.Thread(target=runner.advances, args=[1])
        waiting.start()
        web.start()
        waiting.join()
        runner.advances()
    assert runner.failure is None, web.log()
    assert runner.ended == JOBS
    states = Job.objects.filter(pk__in=[job.pk for job in started.jobs]).values_list("state", flat=True)
    assert set(states) == {"succeeded"}
    web.end()


def test_a_restart_that_cannot_start_leaves_the_old_process_serving(web):
    """Such as after half an upgrade. The log has the reason."""
    address = "http://{}:{}/healthz".format(*web.listener.getsockname())
    assert requests.get(address, timeout=60).status_code == 200
    moved = web.secret_key.rename(web.secret_key.with_name("moved"))
    web.process.send_signal(signal.SIGHUP)
    eventually(lambda: "the old process continues" in web.log() and not web.children())
    assert requests.get(address, timeout=60).status_code == 200
    moved.rename(web.secret_key)
    web.restart()
    assert requests.get(address, timeout=60).status_code == 200
