"""Delta CI's own runner, after the contract: its order of calls, its bodies, its 15 s, no credentials, no second try.

Whatever goes wrong with a heartbeat makes it kill its step and send CancelAck; it executes the first step only."""

import json
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

TIMEOUT = 15


class Refused(Exception):
    """A status of 300 or more; the real runner reads nothing of the body."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status, self.body = status, body


class Runner:
    """`run` returns its exit status; `calls` has what it sent and what it was answered."""

    def __init__(self, url: str, lease: Path, runner_id: str, workdir: Path) -> None:
        self.url, self.runner_id, self.workdir = url, runner_id, workdir
        self.lease = json.loads(lease.read_text())
        self.calls: list[tuple[str, dict[str, Any], int]] = []
        self.canceled = False
        self.log = b""

    def run(self, during: Callable[["Runner"], None] = lambda _: None) -> int:
        """`during` is called while the step runs, in place of a ticker: it beats when the test wants it to."""
        try:
            self._tell("ack-lease", {"type": "AckLease", "job_id": self.lease["job_id"], "accepted_at": _now()})
            self._tell("heartbeat", {"type": "Heartbeat", "ts": _now()})
        except (Refused, OSError):
            return 1
        steps = self.lease["job_spec"]["steps"]
        command = ["sh", "-c", steps[0]] if steps else ["echo", "no steps"]
        with tempfile.TemporaryFile() as log:
            self.step = subprocess.Popen(command, cwd=self.workdir, stdout=log, stderr=subprocess.STDOUT)
            during(self)
            code = self.step.wait(timeout=60)
            log.seek(0)
            self.log = log.read()
        try:
            self._end(code)
        except (Refused, OSError):
            return 1
        return 0

    def beat(self) -> None:
        try:
            answer = self._tell("heartbeat", {"type": "Heartbeat", "ts": _now()})
        except (Refused, OSError):
            self._stop()
        else:
            if answer["cancel_requested"]:
                self._stop()

    def _stop(self) -> None:
        self.canceled = True
        self.step.kill()

    def _end(self, code: int) -> None:
        if self.canceled:
            self._tell(
                "cancel-ack",
                {"type": "CancelAck", "final_status": "CANCELED", "ts": _now(), "summary": "canceled"},
            )
            return
        ended: dict[str, Any] = {"type": "Complete", "status": "SUCCEEDED", "summary": "succeeded"}
        if code:
            code, summary = (-1, "signal: killed") if code < 0 else (code, f"exit status {code}")
            ended |= {"status": "FAILED", "exit_code": code, "summary": summary}
        self._tell("complete", ended | {"finished_at": _now()})

    def _tell(self, call: str, message: dict[str, Any]) -> dict[str, Any]:
        body = message | {"lease_id": self.lease["lease_id"], "runner_id": self.runner_id}
        request = urllib.request.Request(
            f"{self.url}/api/v1/internal/{call}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                status, answered = response.status, response.read()
        except urllib.error.HTTPError as error:
            self.calls.append((call, body, error.code))
            raise Refused(error.code, error.read().decode()) from None
        self.calls.append((call, body, status))
        return json.loads(answered) if call == "heartbeat" else {}


def _now() -> str:
    """As Go writes it: up to nine digits of a second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z"
