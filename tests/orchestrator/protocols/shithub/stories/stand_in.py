"""Plays the runner of contract section 3: one job at a time, one token under one mutex, polling, and no retry.

It is a program like the real one, with the same options and the same `docker`, and uses the standard library only:

    python stand_in.py run --server-url URL --labels a,b --poll-interval 1s --workspace-root FOLDER …

The registration token is in SHITHUB_RUNNER_TOKEN. Two variables shorten what the real program has fixed:
CANCEL_POLL_SECONDS (2) and MINUTE_SECONDS (60), the length of a minute of `timeout-minutes`.
"""

import argparse
import base64
import http.client
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CHUNK_BYTES = 4096
FLUSH_SECONDS = 1.0
EVENTS = 128
MASK = b"***"
HEX = re.compile(r"[0-9a-fA-F]{40,64}")
EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")


class CallFailed(Exception):
    """A call was not answered with a success."""


class StepFailed(Exception):
    """A step has failed with this conclusion."""

    def __init__(self, conclusion: str = "failure") -> None:
        super().__init__(conclusion)
        self.conclusion = conclusion


def now() -> str:
    """Return the time as Go writes it: nine digits at most, without trailing zeros."""
    nanoseconds = time.time_ns()
    fraction = f".{nanoseconds % 10**9:09}".rstrip("0").rstrip(".")
    return f"{datetime.fromtimestamp(nanoseconds // 10**9, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


class Masker:
    """Replaces values in a stream, and holds back the longest suffix that may become one."""

    def __init__(self, values: list[str]) -> None:
        self._values = sorted({value.encode() for value in values if value}, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._values))) if self._values else None
        self._held = b""

    def feed(self, data: bytes, *, is_last: bool = False) -> bytes:
        data = self._held + data
        keep = 0 if is_last else self._kept(data)
        data, self._held = data[: len(data) - keep], data[len(data) - keep :]
        return self._pattern.sub(MASK, data) if self._pattern else data

    def _kept(self, data: bytes) -> int:
        lengths = (
            length
            for value in self._values
            for length in range(min(len(value) - 1, len(data)), 0, -1)
            if data.endswith(value[:length])
        )
        return max(lengths, default=0)


class StepLog:
    """Cuts the output of a step into chunks of 4 KiB, or of a second."""

    def __init__(self, job: "JobRun", step: dict[str, Any]) -> None:
        self._job, self._step, self._seq = job, step, 0
        self._masker = Masker(job.claim["mask_values"] or [])
        self._buffer = b""
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._flush_regularly, daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        with self._lock:
            self._buffer += data
            while len(self._buffer) >= CHUNK_BYTES:
                self._emit(self._masker.feed(self._buffer[:CHUNK_BYTES]))
                self._buffer = self._buffer[CHUNK_BYTES:]

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._emit(self._masker.feed(self._buffer))
            self._emit(self._masker.feed(b"", is_last=True))
            self._buffer = b""

    def _flush_regularly(self) -> None:
        while not self._closed.wait(FLUSH_SECONDS):
            with self._lock:
                self._emit(self._masker.feed(self._buffer))
                self._buffer = b""

    def _emit(self, data: bytes) -> None:
        if data:
            body = {"seq": self._seq, "chunk": base64.b64encode(data).decode(), "step_id": self._step["id"]}
            if self._job.emit("logs", body):
                self._seq += 1


class Api:
    """Sends requests as the real program does."""

    def __init__(self, server: str) -> None:
        self._address = urlsplit(server).netloc

    def post(self, path: str, token: str, body: Any) -> dict[str, Any] | None:
        """Return the document of a success; None without one.

        Raises:
            CallFailed: The answer is no success, or there is none.
        """
        headers = {
            "User-Agent": "stand-in",
            "Accept": "application/json",
            "Content-Type": "application/json",
            "Authorization": f"Bearer {token}",
            "Accept-Encoding": "gzip",
        }
        line = http.client.HTTPConnection(self._address)
        text = json.dumps(body, separators=(",", ":")) + "\n"
        try:
            line.putrequest("POST", path, skip_accept_encoding=True)
            for name, value in (headers | {"Content-Length": str(len(text))}).items():
                line.putheader(name, value)
            line.endheaders(text.encode())
            response = line.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise CallFailed(f"POST {path}: {error!r}") from error
        finally:
            line.close()
        if response.status == 204:
            return None
        if not 200 <= response.status <= 299:
            raise CallFailed(f"POST {path} returned {response.status}: {answer[:4096]!r}")
        found: dict[str, Any] = json.loads(answer)
        return found


class JobRun:
    """One claimed job: its token, its events in order, and its end."""

    def __init__(self, api: Api, claim: dict[str, Any], options: argparse.Namespace) -> None:
        self.claim: dict[str, Any] = claim["job"]
        self._api, self._token, self._options = api, claim["token"], options
        self._mutex = threading.Lock()
        self._events: queue.Queue[tuple[str, dict[str, Any]] | None] = queue.Queue(EVENTS)
        self._is_cancelled, self._is_over = threading.Event(), threading.Event()
        self._container = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._drain_error: CallFailed | None = None
        self._workspace = Path(options.workspace_root) / str(self.claim["run_id"]) / str(self.claim["id"])
        self._deadline = float("inf")

    def call(self, path: str, body: Any) -> dict[str, Any]:
        """Make a call with the one token, and keep the next one if there is one."""
        with self._mutex:
            answer = self._api.post(f"/api/v1/jobs/{self.claim['id']}/{path}", self._token, body) or {}
            self._token = answer.get("next_token") or self._token
        return answer

    def emit(self, path: str, body: dict[str, Any], *, patience: float = 0.0) -> bool:
        """Queue an event. A full queue is waited for until the job is canceled or out of time."""
        ends_at = time.monotonic() + patience
        while True:
            try:
                self._events.put((path, body), timeout=0.05)
            except queue.Full:
                if self._must_stop() and time.monotonic() >= ends_at:
                    return False
            else:
                return True

    def run(self) -> None:
        """Execute the job from its first report to its last one.

        Raises:
            CallFailed: A report was refused; the job is left as it is.
        """
        self._workspace.mkdir(parents=True, exist_ok=True)
        try:
            started_at = now()
            if not self.call("status", {"status": "running", "started_at": started_at}).get("next_token"):
                raise CallFailed("the first report was answered without a token")
            poller = threading.Thread(target=self._poll, daemon=True)
            drain = threading.Thread(target=self._drain, daemon=True)
            poller.start()
            drain.start()
            started_at = now()
            conclusion, completed_at = self._execute()
            self._is_over.set()
            poller.join()
            self._events.put(None)
            drain.join()
            if self._drain_error:
                raise self._drain_error
            is_cancelled = self._is_cancelled.is_set()
            status = "cancelled" if is_cancelled else "completed"
            times = {"started_at": started_at, "completed_at": completed_at}
            self.call("status", {"status": status, "conclusion": "cancelled" if is_cancelled else conclusion} | times)
        finally:
            shutil.rmtree(self._workspace, ignore_errors=True)

    def _drain(self) -> None:
        """Send the events in order. After a refusal nothing is sent any more, and the queue fills up."""
        while (event := self._events.get()) is not None:
            try:
                self.call(*event)
            except CallFailed as error:
                self._drain_error = error
                while not self._is_over.wait(0.05):
                    pass
                while self._events.get() is not None:
                    pass
                return

    def _poll(self) -> None:
        while not self._is_over.wait(float(os.environ.get("CANCEL_POLL_SECONDS", "2"))):
            try:
                is_cancelled = self.call("cancel-check", {})["cancelled"]
            except CallFailed as error:
                report(error)
                continue
            if is_cancelled:
                if self._container:
                    subprocess.run([self._options.engine, "kill", self._container], check=False)
                self._is_cancelled.set()
                return

    def _execute(self) -> tuple[str, str]:
        """Execute the steps, and return the conclusion of the job and its time."""
        minutes = self.claim["timeout_minutes"]
        if minutes:
            self._deadline = time.monotonic() + minutes * float(os.environ.get("MINUTE_SECONDS", "60"))
        for step in self.claim["steps"]:
            started_at, conclusion = now(), "success"
            try:
                self._execute_step(step)
            except StepFailed as failed:
                conclusion = failed.conclusion
            completed_at = now()
            body = {"status": "completed", "conclusion": conclusion}
            times = {"started_at": started_at, "completed_at": completed_at}
            self.emit(f"steps/{step['id']}/status", body | times, patience=5)
            if conclusion != "success" and not step["continue_on_error"]:
                return conclusion, completed_at
        return "success", now()

    def _execute_step(self, step: dict[str, Any]) -> None:
        if step["uses"] == "actions/checkout@v4":
            self._check_out(step)
        elif step["uses"]:
            raise StepFailed
        elif step["run"].strip():
            self._run_script(step)

    def _check_out(self, step: dict[str, Any]) -> None:
        job, commit = self.claim, self.claim["head_sha"]
        if set(step["with"]) - {"fetch-depth"} or not HEX.fullmatch(commit):
            raise StepFailed
        depth = int(step["with"].get("fetch-depth", "1"))
        log = StepLog(self, step)
        log.write(f"Checking out {job['checkout_url']} at {commit[:12]}\n".encode())
        helper = "!f() { echo username=shithub-actions; echo password=$SHITHUB_CHECKOUT_TOKEN; }; f"
        fetch = ["-c", f"credential.helper={helper}", "fetch", "--no-tags", *([f"--depth={depth}"] if depth else [])]
        variables = {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "SHITHUB_CHECKOUT_TOKEN": job["checkout_token"],
        }
        commands = [
            ["init"],
            ["remote", "add", "origin", job["checkout_url"]],
            [*fetch, "origin", commit],
            ["checkout", "--force", "--detach", commit],
            ["rev-parse", "HEAD"],
        ]
        try:
            for command in commands:
                self._execute_command(["git", "-C", str(self._workspace), *command], variables, log)
            log.write(f"Checked out {commit[:12]}\n".encode())
        finally:
            log.close()

    def _run_script(self, step: dict[str, Any]) -> None:
        variables = self._resolved(self.claim["env"], {})
        variables |= self._resolved(step["env"], variables)
        script = EXPRESSION.sub(lambda found: self._value(found[1], variables), step["run"])
        self._container = f"shithub-job-{self.claim['id']}-step-{step['id']}"
        options = self._options
        command = [options.engine, "run", "--rm", "--name", self._container, f"--network={options.network}"]
        command += ["--read-only", "--tmpfs", "/tmp:rw,exec,nosuid,nodev,size=1g"]
        command += ["--cap-drop=ALL", "--security-opt=no-new-privileges", "--ulimit", "nproc=512:512"]
        command += ["--workdir=/workspace", "--mount", f"type=bind,src={self._workspace},dst=/workspace"]
        command += [word for name in sorted(variables) for word in ("--env", name)]
        log = StepLog(self, step)
        try:
            self._execute_command([*command, options.image, "bash", "-c", script], variables, log)
        finally:
            self._container = ""
            log.close()

    def _resolved(self, values: dict[str, str], variables: dict[str, str]) -> dict[str, str]:
        return {
            name: EXPRESSION.sub(lambda found: self._value(found[1], variables), text) for name, text in values.items()
        }

    def _value(self, name: str, variables: dict[str, str]) -> str:
        """Return the value of an expression, of which only names are known here."""
        root, _, member = name.partition(".")
        if root == "secrets" and member in (self.claim["secrets"] or {}):
            return str(self.claim["secrets"][member])
        if root == "env":
            return variables.get(member, "")
        fields = {"run_id": "run_id", "sha": "head_sha", "ref": "head_ref"}
        if root == "shithub" and member in fields:
            return str(self.claim[fields[member]])
        raise StepFailed

    def _execute_command(self, command: list[str], variables: dict[str, str], log: StepLog) -> None:
        process = subprocess.Popen(
            command, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        reader = threading.Thread(target=self._read, args=(process.stdout.fileno(), log), daemon=True)
        reader.start()
        while process.poll() is None:
            if self._must_stop():
                process.kill()
            time.sleep(0.01)
        reader.join()
        process.stdout.close()
        if process.returncode:
            # The real program does not recognize the end of its own time limit in a program that it has killed.
            raise StepFailed

    def _read(self, output: int, log: StepLog) -> None:
        while data := os.read(output, 32768):
            log.write(data)

    def _must_stop(self) -> bool:
        return self._is_cancelled.is_set() or time.monotonic() >= self._deadline


def report(error: object) -> None:
    """Write a line to the log of the program."""
    print(error, file=sys.stderr, flush=True)  # noqa: T201 a program


def seconds(text: str) -> float:
    """Return the seconds of a duration: `300ms`, `2s`."""
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text.removesuffix("s"))


def main() -> None:
    """Claim and execute jobs until the process is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["run"])
    for name in ("server-url", "labels", "workspace-root", "engine", "image", "network"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--capacity", type=int, default=1)
    parser.add_argument("--poll-interval", type=seconds, default=5.0)
    options = parser.parse_args()
    api, token = Api(options.server_url), os.environ["SHITHUB_RUNNER_TOKEN"]
    body = {"labels": options.labels.split(","), "capacity": options.capacity}
    while True:
        try:
            if claim := api.post("/api/v1/runners/heartbeat", token, body):
                JobRun(api, claim, options).run()
                continue
        except CallFailed as error:
            report(error)
            if "heartbeat" not in str(error):
                continue
        time.sleep(options.poll_interval)


if __name__ == "__main__":
    main()
