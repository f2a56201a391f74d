"""The stories: what a runner goes through, and what must come of it. Each raises AssertionError if it is not so."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

from runtime_jobs.identifiers import public_id_of
from tests.bencher_runner.image import OUTPUT_FILE
from tests.bencher_runner.installation import Installation, RunnerIdentity, RunnerProcess, SubmittedRun, unknown_key
from tests.bencher_runner.proxy import Entry, Recording, RecordingProxy, is_message

TTL_SECONDS: Final = 10
# Of the installation in which a server and a runner are killed.
SETTINGS: Final = {"RUNNER_HEARTBEAT_TIMEOUT_SECONDS": str(TTL_SECONDS)}
EXPIRY_SLACK_SECONDS: Final = 2.0 + 10.0  # the promise, and what a machine under load may add
POLL_SECONDS: Final = 2
LONG_JOB_SECONDS: Final = 485
SECONDS: Final = 60.0  # for anything that happens without a wait of its own, on a machine under load
RECONNECT_SECONDS: Final = 90.0  # the server starts again, and the runner pauses 5 to 10 s between attempts
ENDLESS: Final = ("600", "0")  # which the story ends
HARDWARE: Final = {
    "os": "linux",
    "architecture": "x86_64",
    "sandbox": None,
    "cpu": 1,
    "memory": 64 << 20,
    "disk": 64 << 20,
    "network": False,
}


class Scene:
    """One story: its recording, its runners and specs, and the processes that end with it."""

    def __init__(self, name: str, installation: Installation, *, binary: Path, image: str, folder: Path) -> None:
        """Prepare.

        Args:
            name: The name of the story. Runners and specs are named for it.
            installation: The installation.
            binary: The runner's program.
            image: The reference to the image.
            folder: A folder for logs and temporary files, which is made.
        """
        self.slug = name.replace("_", "-")
        self.installation, self._binary, self._image, self._folder = installation, binary, image, folder
        self.proxy: RecordingProxy = installation.proxy
        self.recording = self.proxy.recording = Recording()
        self.began_at = time.monotonic()
        self.jobs: list[str] = []
        self.processes: list[RunnerProcess] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- What the story does; each is part of the recording -----------------------------------------------------------

    def act(self, action: str, **values: Any) -> None:
        self.recording.add("harness", action=action, **values)

    def spec(self, suffix: str = "", **changes: Any) -> str:
        """Make a hardware spec, and return its slug."""
        slug, values = self.slug + suffix, HARDWARE | changes
        self.act("spec", spec=slug, values=values)
        self.installation.new_spec(slug, values)
        return slug

    def runner(self, *specs: str, suffix: str = "") -> RunnerIdentity:
        """Make a runner that provides the specs."""
        slug = self.slug + suffix
        self.act("runner", runner=slug)
        found = self.installation.new_runner(slug)
        for spec in specs:
            self.associate(found, spec)
        return found

    def associate(self, runner: RunnerIdentity, spec: str) -> None:
        self.act("associate", runner=runner.slug, spec=spec)
        self.installation.call("POST", f"/v0/runners/{runner.slug}/specs", {"spec": spec}, status=201)

    def rotate(self, runner: RunnerIdentity) -> RunnerIdentity:
        self.act("rotate", runner=runner.slug)
        return self.installation.rotate(runner)

    def archive(self, runner: RunnerIdentity, archived: bool) -> None:
        self.act("archive", runner=runner.slug, archived=archived)
        self.installation.call("PATCH", f"/v0/runners/{runner.slug}", {"archived": archived})

    def submit(self, spec: str, *arguments: str, adapter: str = "json", timeout: int = 300, **job: Any) -> SubmittedRun:
        """Submit a job of the image's program: seconds and exit code are its arguments."""
        values = {"spec": spec, "cmd": list(arguments), "timeout": timeout, **job}
        self.act("submit", job=values)
        run = self.installation.submit(values | {"image": self._image}, adapter)
        self.jobs.append(run.job)
        return run

    def cancel(self, run: SubmittedRun) -> None:
        self.act("cancel", job=run.job)
        path = f"/v1/jobs/{public_id_of('rtj', UUID(run.job))}/cancel"
        body = {"reason": "make runner"}
        self.installation.call("POST", path, body, key="api_token", status=202)

    def start(self, runner: RunnerIdentity, *, path: str | None = None, **options: Any) -> RunnerProcess:
        """Start the program with the key of this runner, and the path of this or another one."""
        folder = self._folder / f"{self.slug}-{len(self.processes) + 1}"
        process = RunnerProcess(self._binary, folder)
        self.processes.append(process)
        self._stack.callback(process.stop)
        process.start(self.proxy, path or runner.slug, runner.key, **{"poll_seconds": POLL_SECONDS} | options)
        return process

    def stop(self, process: RunnerProcess) -> None:
        self.act("stop_runner")
        process.stop()

    def signal_server(self, number: signal.Signals) -> None:
        """Send a signal to the process that serves HTTP. `manage.py up` starts it again."""
        self.act("kill_server" if number is signal.SIGKILL else "restart_server")
        os.kill(self.installation.web_process(), number)

    # --- What must come of it -----------------------------------------------------------------------------------------

    def expect(self, run: SubmittedRun, status: str, seconds: float = SECONDS) -> Any:
        """Wait for the status of a job, and return the job."""
        job = self.wait_for_status(run, status, seconds)
        self.act("status", job=run.job, status=status)
        return job

    def wait_for_status(self, run: SubmittedRun, status: str, seconds: float = SECONDS) -> Any:
        deadline = time.monotonic() + seconds
        while (job := self.installation.job(run))["status"] != status:
            assert time.monotonic() < deadline, f"the job is {job['status']}, not {status}, after {seconds:.0f} s"
            time.sleep(0.2)
        return job

    def wait_for(self, what: str, condition: Callable[[list[Entry]], Any], seconds: float = SECONDS) -> Any:
        return self.recording.wait_for(condition, seconds, what)

    def wait_for_message(self, source: str, event: str, count: int = 1, seconds: float = SECONDS) -> Entry:
        """Wait for so many of a message, and return the last one."""

        def last(entries: list[Entry]) -> Entry | None:
            found = [entry for entry in entries if is_message(entry, source, event)]
            return found[count - 1] if len(found) >= count else None

        return self.wait_for(f"{event} of the {source} number {count}", last, seconds)

    def wait_until_waiting(self, count: int = 1, seconds: float = SECONDS) -> None:
        self.wait_for_message("runner", "ready", count, seconds)

    def wait_until_executing(self, run: SubmittedRun) -> None:
        """Wait for the answer to the first heartbeat, so that the next one is a second away."""

        def is_beating(entries: list[Entry]) -> bool:
            acknowledged = [entry for entry in entries if is_message(entry, "server", "ack")]
            return sum(entry["message"].get("job") == run.job for entry in acknowledged) >= 2

        self.wait_for("answer to a heartbeat", is_beating)
        self.expect(run, "running")

    def wait_for_status_of_handshake(self, connection: int, seconds: float = SECONDS) -> int:
        """Return the status of the response to the handshake of a connection."""

        def statuses(entries: list[Entry]) -> list[int]:
            return [entry["status"] for entry in entries if "status" in entry and entry.get("connection") == connection]

        return int(self.wait_for(f"response to connection {connection}", statuses, seconds)[0])


def _only(entries: list[Entry]) -> Entry:
    assert len(entries) == 1, f"one message was expected, not {len(entries)}"
    return entries[0]


def two_no_job(scene: Scene) -> None:
    """Two polls on one connection without a job, none answered early."""
    scene.start(scene.runner(scene.spec()))
    scene.wait_for_message("server", "no_job", 2)
    readies, answers = scene.recording.messages("runner", "ready"), scene.recording.messages("server", "no_job")
    for ready, answer in zip(readies, answers[:2], strict=False):
        assert ready["message"] == {"event": "ready", "poll_timeout": POLL_SECONDS}
        assert answer["at"] - ready["at"] >= POLL_SECONDS - 0.01, "no_job was early"
    assert {entry["connection"] for entry in answers} == {1}


def metrics_of_iterations_with_a_file(scene: Scene) -> None:
    """Three iterations whose metrics are in a file, then the measures of the runner under a path with NUL."""
    spec = scene.spec()
    scene.start(scene.runner(spec))
    scene.wait_until_waiting()
    run = scene.submit(spec, "0", "0", iter=3, file_paths=[OUTPUT_FILE])
    job = scene.expect(run, "processed")
    assert [sorted(result["output"]) for result in job["output"]["results"]] == [[OUTPUT_FILE]] * 3
    assert _metrics(scene, run) == {(number, "bench", "throughput", 42.0) for number in range(3)}

    run = scene.submit(spec, "0", "0", file_paths=[OUTPUT_FILE], build_time=True, file_size=True)
    job = scene.expect(run, "processed")
    (result,) = job["output"]["results"]
    assert list(result["output"]) == ["\0bencher"]
    measures = {(benchmark, measure) for _, benchmark, measure, _ in _metrics(scene, run)}
    assert measures == {("0 0", "build-time"), (OUTPUT_FILE, "file-size")}


def _metrics(scene: Scene, run: SubmittedRun) -> set[tuple[int, str, str, float]]:
    return {
        (row["iteration"], row["benchmark"]["name"], measure["measure"]["slug"], measure["metric"]["value"])
        for iteration in scene.installation.report(run)["results"]
        for row in iteration
        for measure in row["measures"]
    }


def exit_code_7(scene: Scene) -> None:
    """A benchmark that fails: the job fails and keeps its output."""
    spec = scene.spec()
    scene.start(scene.runner(spec))
    scene.wait_until_waiting()
    job = scene.expect(scene.submit(spec, "0", "7"), "failed")
    assert job["output"]["results"][0]["exit_code"] == 7
    assert job["output"]["error"].endswith("7")


def cancel_while_executing(scene: Scene) -> None:
    """A cancel reaches the runner at a beat, once, and the runner takes the next job."""
    spec = scene.spec()
    scene.start(scene.runner(spec))
    scene.wait_until_waiting()
    run = scene.submit(spec, *ENDLESS)
    scene.wait_until_executing(run)
    scene.cancel(run)
    scene.expect(run, "canceled")
    scene.wait_for_message("server", "cancel")
    scene.wait_until_waiting(2)
    native = scene.installation.call("GET", f"/v1/jobs/{public_id_of('rtj', UUID(run.job))}", key="api_token")
    assert native["status"] == "canceled", "the runner has acknowledged the cancel"
    scene.expect(scene.submit(spec, "0", "0"), "processed")
    _only(scene.recording.messages("server", "cancel"))
    assert {entry["connection"] for entry in scene.recording.entries if "connection" in entry} == {1}


def local_timeout(scene: Scene) -> None:
    """The runner ends a benchmark at the time limit, before the server would."""
    spec = scene.spec()
    scene.start(scene.runner(spec))
    scene.wait_until_waiting()
    job = scene.expect(scene.submit(spec, *ENDLESS, timeout=3), "failed")
    assert "timeout" in job["output"]["error"].lower()
    assert job["output"]["results"] == []


def sandbox_refused(scene: Scene) -> None:
    """A job of a spec with sandbox: not for a runner without the spec, and refused by one that has no sandbox."""
    boxed = scene.spec("-boxed", sandbox="firecracker")
    runner = scene.runner(scene.spec())
    scene.start(runner)
    scene.wait_until_waiting()
    run = scene.submit(boxed, "0", "0")
    scene.wait_for_message("server", "no_job", len(scene.recording.messages("server", "no_job")) + 2)
    scene.expect(run, "pending")
    scene.associate(runner, boxed)
    job = scene.expect(run, "failed")
    assert job["output"]["results"] == []
    failed = _only(scene.recording.messages("runner", "failed"))
    assert failed["message"]["error"] == job["output"]["error"]


def no_sandbox_refused(scene: Scene) -> None:
    """A runner that was started without permission for jobs without sandbox refuses them."""
    spec = scene.spec()
    scene.start(scene.runner(spec), allows_no_sandbox=False)
    scene.wait_until_waiting()
    job = scene.expect(scene.submit(spec, "0", "0"), "failed")
    assert job["output"]["results"] == []
    assert "--danger-allow-no-sandbox" in job["output"]["error"]


def runner_killed_while_executing(scene: Scene) -> None:
    """The job of a killed runner fails when its lease expires. The runner's next life takes the next job."""
    spec = scene.spec()
    runner = scene.runner(spec)
    process = scene.start(runner)
    scene.wait_until_waiting()
    run = scene.submit(spec, *ENDLESS)
    scene.wait_until_executing(run)
    scene.act("stop_runner")
    process.kill()
    began = time.monotonic()
    scene.act("silence", job=run.job)
    scene.expect(run, "failed", TTL_SECONDS + EXPIRY_SLACK_SECONDS)
    assert time.monotonic() - began > TTL_SECONDS - 3, "the lease ended early"
    scene.start(runner)
    scene.expect(scene.submit(spec, "0", "0"), "processed")


def server_killed_while_executing(scene: Scene) -> None:
    """The result of a job survives the server: the runner sends it again to the server's next life."""
    spec = scene.spec()
    scene.start(scene.runner(spec))
    scene.wait_until_waiting()
    run = scene.submit(spec, "12", "0")
    scene.wait_until_executing(run)
    scene.signal_server(signal.SIGKILL)
    scene.wait_for("completed", lambda entries: [entry for entry in entries if _is_resent(entry)], RECONNECT_SECONDS)
    scene.expect(run, "processed")
    assert {value for *_, value in _metrics(scene, run)} == {7.5}
    scene.expect(scene.submit(spec, "0", "0"), "processed")


def _is_resent(entry: Entry) -> bool:
    return is_message(entry, "runner", "completed") and entry["connection"] > 1


def server_restarted_while_waiting(scene: Scene) -> None:
    """A server that is restarted closes the connection in order. The runner connects again."""
    spec = scene.spec()
    scene.start(scene.runner(spec))
    scene.wait_until_waiting()
    scene.signal_server(signal.SIGTERM)
    closed = scene.wait_for("Close frame", lambda entries: [entry for entry in entries if "close" in entry])
    assert (closed[0]["close"], closed[0]["reason"]) == (1001, "server shutting down")
    scene.wait_until_waiting(2, RECONNECT_SECONDS)
    scene.expect(scene.submit(spec, "0", "0"), "processed")


def key_rotated(scene: Scene) -> None:
    """A rotation leaves open connections alone, and refuses the old key at once."""
    spec = scene.spec()
    old = scene.runner(spec)
    process = scene.start(old)
    scene.wait_until_waiting()
    new = scene.rotate(old)
    scene.expect(scene.submit(spec, "0", "0"), "processed")
    scene.stop(process)
    process = scene.start(old)
    assert scene.wait_for_status_of_handshake(2) == 401
    scene.stop(process)
    scene.start(new)
    scene.expect(scene.submit(spec, "0", "0"), "processed")
    assert scene.wait_for_status_of_handshake(3) == 101


def wrong_key(scene: Scene) -> None:
    """An unknown key is refused at each attempt, and gets no job."""
    spec = scene.spec()
    runner = scene.runner(spec)
    run = scene.submit(spec, "0", "0")
    scene.start(RunnerIdentity(runner.slug, unknown_key()))
    assert [scene.wait_for_status_of_handshake(number) for number in (1, 2)] == [401, 401]
    scene.expect(run, "pending")
    assert not [entry for entry in scene.recording.entries if "message" in entry]


def archived(scene: Scene) -> None:
    """An archived runner gets no job over its open connection and no other connection, until it is restored."""
    spec = scene.spec()
    runner = scene.runner(spec)
    scene.start(runner)
    scene.wait_until_waiting()
    scene.archive(runner, archived=True)
    run = scene.submit(spec, "0", "0")
    second = scene.start(runner)
    assert scene.wait_for_status_of_handshake(2) == 401
    scene.stop(second)
    scene.wait_for_message("server", "no_job", len(scene.recording.messages("server", "no_job")) + 2)
    scene.expect(run, "pending")
    scene.archive(runner, archived=False)
    scene.expect(run, "processed")
    assert {entry["connection"] for entry in scene.recording.messages("server", "job")} == {1}


def path_of_another_runner(scene: Scene) -> None:
    """A key is valid for the path of its own runner only."""
    spec = scene.spec()
    runner = scene.runner(spec)
    other = scene.runner(spec, suffix="-other")
    run = scene.submit(spec, "0", "0")
    process = scene.start(runner, path=other.slug)
    assert scene.wait_for_status_of_handshake(1) == 401
    scene.stop(process)
    scene.expect(run, "pending")
    scene.start(runner)
    scene.expect(run, "processed")


class LongJob:
    """One job of eight minutes on one connection, beside the other stories."""

    NAME = "long_job"

    def __init__(self, scene: Scene) -> None:
        """Start the runner and submit the job."""
        self.scene = scene
        spec = scene.spec()
        scene.start(scene.runner(spec), poll_seconds=55)
        scene.wait_until_waiting()
        self.run = scene.submit(spec, str(LONG_JOB_SECONDS), "0", timeout=LONG_JOB_SECONDS + 115)
        self._submitted_at = time.monotonic()
        scene.wait_for_message("runner", "running")

    def finish(self) -> None:
        """Wait for the end of the job."""
        left = self._submitted_at + LONG_JOB_SECONDS + SECONDS - time.monotonic()
        self.scene.wait_for_message("runner", "completed", seconds=max(SECONDS, left))
        self.scene.expect(self.run, "processed")
        self.scene.wait_until_waiting(2)
        assert len(self.scene.recording.messages("server", "ack")) >= LONG_JOB_SECONDS * 8 // 10, "beats are missing"
        assert self.reconnects == 0
        assert self.seconds >= LONG_JOB_SECONDS - 5

    @property
    def seconds(self) -> float:
        """Return the time between `running` and `completed`, or 0."""
        running, completed = (self.scene.recording.messages("runner", event) for event in ("running", "completed"))
        return round(completed[0]["at"] - running[0]["at"], 1) if running and completed else 0.0

    @property
    def reconnects(self) -> int:
        return sum("handshake" in entry for entry in self.scene.recording.entries) - 1


STORIES: Final[Mapping[str, Callable[[Scene], None]]] = {
    story.__name__: story
    for story in (
        two_no_job,
        metrics_of_iterations_with_a_file,
        exit_code_7,
        cancel_while_executing,
        local_timeout,
        sandbox_refused,
        no_sandbox_refused,
        runner_killed_while_executing,
        server_killed_while_executing,
        server_restarted_while_waiting,
        key_rotated,
        wrong_key,
        archived,
        path_of_another_runner,
    )
}
NAMES: Final = (*STORIES, LongJob.NAME)
