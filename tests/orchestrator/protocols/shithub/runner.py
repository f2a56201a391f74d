"""The client of contract section 3: one token at a time, and no retry."""

import base64
import json
from dataclasses import dataclass, field
from typing import Any

from django.test import Client

HEARTBEAT = "/api/v1/runners/heartbeat"
LABELS = ["self-hosted", "linux", "ubuntu-latest"]


@dataclass
class RunnerClient:
    """A runner with its registration token.

    Attributes:
        registration: The token.
        http: Sends the requests.
    """

    registration: str
    http: Client = field(default_factory=lambda: Client(raise_request_exception=False))

    def post(self, path: str, body: Any = None, *, token: str | None = None) -> Any:
        """Send a request as the runner does; `bytes` are sent as they are."""
        raw = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode() + b"\n"
        headers = {"Authorization": f"Bearer {token or self.registration}", "Accept": "application/json"}
        return self.http.generic("POST", path, raw, content_type="application/json", headers=headers)

    def heartbeat(self, **body: Any) -> Any:
        """Send a heartbeat with the labels and the capacity of the runner, unless the arguments name others."""
        return self.post(HEARTBEAT, {"labels": LABELS, "capacity": 1} | body)

    def claim(self, **body: Any) -> "ClaimedJobClient":
        """Claim a job, which must exist."""
        response = self.heartbeat(**body)
        assert response.status_code == 200, (response.status_code, response.content)
        return ClaimedJobClient(self, response.json())


class ClaimedJobClient:
    """A claimed job, and the one token that its runner has."""

    def __init__(self, runner: RunnerClient, claim: dict[str, Any]) -> None:
        self.runner, self.claim = runner, claim
        self.job: dict[str, Any] = claim["job"]
        self.token: str = claim["token"]
        self.tokens = [self.token]

    @property
    def path(self) -> str:
        return f"/api/v1/jobs/{self.job['id']}"

    @property
    def steps(self) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = self.job["steps"]
        return steps

    def call(self, path: str, body: Any = None, *, token: str | None = None) -> Any:
        """Make a call about the job, and keep the next token if there is one."""
        response = self.runner.post(f"{self.path}/{path}", body, token=token or self.token)
        if response.status_code < 300 and (following := response.json().get("next_token")):
            self.token = following
            self.tokens.append(following)
        return response

    def run(self) -> Any:
        return self.call("status", {"status": "running", "started_at": "2026-05-10T21:00:00.12Z"})

    def end(self, conclusion: str = "success", status: str = "completed") -> Any:
        times = {"started_at": "2026-05-10T21:00:00.12Z", "completed_at": "2026-05-10T21:01:00.000000123Z"}
        return self.call("status", {"status": status, "conclusion": conclusion} | times)

    def log(self, data: bytes, *, seq: int = 0, step: int = 0) -> Any:
        chunk = base64.b64encode(data).decode()
        return self.call("logs", {"seq": seq, "chunk": chunk, "step_id": self.steps[step]["id"]})

    def end_step(self, step: int = 0, conclusion: str = "success", status: str = "completed") -> Any:
        times = {"started_at": "2026-05-10T21:00:00Z", "completed_at": "2026-05-10T21:00:30.5Z"}
        body = {"status": status, "conclusion": conclusion} | times
        return self.call(f"steps/{self.steps[step]['id']}/status", body)

    def check_cancel(self) -> Any:
        return self.call("cancel-check")
