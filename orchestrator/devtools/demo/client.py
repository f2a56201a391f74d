"""Submits a job over HTTP and follows it, as a program of a tenant would: with nothing but an API token."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import requests

JOBS = "/v1/runtime/jobs"
REQUEST_TIMEOUT_SECONDS = 15


class DemoError(Exception):
    """Reports in one line why the server, or this machine, did not run the job."""


@dataclass(frozen=True)
class DemoRequest:
    """Holds the job to run. `egress` is None for no network, else the hosts that the command may reach."""

    repo_url: str
    git_commit: str
    command: tuple[str, ...]
    timeout_seconds: int
    egress: tuple[str, ...] | None = None

    @property
    def owner_and_name(self) -> tuple[str, str]:
        """Return the last two parts of the repository's URL."""
        owner, name = self.repo_url.removesuffix(".git").split("/")[-2:]
        return owner, name


@dataclass
class JobFollower:
    """Polls one job. Each call sends one request; `new_events` and `new_lines` yield each item once."""

    url: str
    token: str
    job_id: str = ""
    log: bytes = b""
    last_seq: int = 0
    session: requests.Session = field(default_factory=requests.Session)

    def __post_init__(self) -> None:
        # The server is on this machine: no proxy of the environment, and no ~/.netrc that would replace the token.
        self.session.trust_env = False

    def submit(self, request: DemoRequest, *, org_slug: str, project_slug: str) -> None:
        """Submit the job.

        Raises:
            DemoError: The server rejected it.
        """
        owner, name = request.owner_and_name
        body = {
            "org_slug": org_slug,
            "project_slug": project_slug,
            "source": {
                "kind": "github",
                "repo_url": request.repo_url,
                "owner": owner,
                "repo": name,
                "git_commit": request.git_commit,
            },
            "execution": {
                "command": list(request.command),
                "timeout_seconds": request.timeout_seconds,
                "allow_network": request.egress is not None,
            },
            "trigger": {"kind": "manual", "actor": "demo"},
        }
        self.job_id = self._call("POST", JOBS, json=body).json()["job_id"]

    def job(self) -> dict[str, Any]:
        """Return the job's current representation."""
        return dict(self._call("GET", f"{JOBS}/{self.job_id}").json())

    def pending_message(self) -> str:
        """Return the server's sentence about why the job waits; empty if it does not wait."""
        reason = self._call("GET", f"/v1/jobs/{self.job_id}").json().get("pending_reason")
        return str(reason["message"]) if reason else ""

    def cancel(self) -> None:
        """Cancel the job, if it was submitted and the server still responds."""
        with contextlib.suppress(DemoError):
            if self.job_id:
                self._call("POST", f"{JOBS}/{self.job_id}/cancel", json={"reason": "the demo was interrupted"})

    def new_events(self) -> Iterator[dict[str, Any]]:
        """Yield the events since the last call."""
        events = self._call("GET", f"{JOBS}/{self.job_id}/events", params={"after": self.last_seq}).json()["results"]
        for event in events:
            self.last_seq = event["seq"]
            yield event

    def new_lines(self, *, is_complete: bool = False) -> Iterator[str]:
        """Yield the lines of output since the last call; with `is_complete` also a last one without a newline."""
        log = self._call("GET", f"{JOBS}/{self.job_id}/logs").content
        unread = log[len(self.log) :]
        lines = unread if is_complete else unread[: unread.rfind(b"\n") + 1]
        self.log += lines
        yield from lines.decode(errors="replace").splitlines()

    def _call(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            response = self.session.request(
                method, self.url + path, headers=headers, timeout=REQUEST_TIMEOUT_SECONDS, **options
            )
            problem = {} if response.ok else response.json()
        except requests.RequestException as error:  # also an error without a problem document
            raise DemoError(f"the server does not respond at {self.url} ({type(error).__name__})") from None
        if not response.ok:
            errors = "; ".join(f"{name}: {' '.join(map(str, why))}" for name, why in problem.get("errors", {}).items())
            raise DemoError(f"{problem.get('detail', response.reason)} {errors}".strip())
        return response
