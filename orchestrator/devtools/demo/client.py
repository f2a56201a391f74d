"""The demo as a program of a tenant: it submits a job over HTTP and follows it, with nothing but its API token."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import requests

JOBS = "/v1/runtime/jobs"
SECONDS = 15


class DemoError(Exception):
    """The server, or this machine, did not take the job; `str()` says why in one line."""


@dataclass(frozen=True)
class DemoRequest:
    """What is to be run. `egress`: None for no network, else the hosts that it may reach."""

    repo_url: str
    git_commit: str
    command: tuple[str, ...]
    timeout_seconds: int
    egress: tuple[str, ...] | None = None

    @property
    def owner_and_name(self) -> tuple[str, str]:
        owner, name = self.repo_url.removesuffix(".git").split("/")[-2:]
        return owner, name


@dataclass
class JobFollower:
    """One job as it goes on. Each call asks the server once; `log` grows, `events` are handed out once each."""

    url: str
    token: str
    job_id: str = ""
    log: bytes = b""
    seen: int = 0
    session: requests.Session = field(default_factory=requests.Session)

    def submit(self, order: DemoRequest, *, org_slug: str, project_slug: str) -> None:
        """Queue the job. Raises DemoRefused."""
        owner, name = order.owner_and_name
        body = {
            "org_slug": org_slug,
            "project_slug": project_slug,
            "source": {
                "kind": "github",
                "repo_url": order.repo_url,
                "owner": owner,
                "repo": name,
                "git_commit": order.git_commit,
            },
            "execution": {
                "command": list(order.command),
                "timeout_seconds": order.timeout_seconds,
                "allow_network": order.egress is not None,
            },
            "trigger": {"kind": "manual", "actor": "demo"},
        }
        self.job_id = self._call("POST", JOBS, json=body).json()["job_id"]

    def job(self) -> dict[str, Any]:
        return dict(self._call("GET", f"{JOBS}/{self.job_id}").json())

    def cancel(self) -> None:
        """Give the job up, if it was submitted and the server still listens."""
        with contextlib.suppress(requests.RequestException, DemoError):
            if self.job_id:
                self._call("POST", f"{JOBS}/{self.job_id}/cancel", json={"reason": "the demo was given up"})

    def new_events(self) -> Iterator[dict[str, Any]]:
        events = self._call("GET", f"{JOBS}/{self.job_id}/events", params={"after": self.seen}).json()["results"]
        for event in events:
            self.seen = event["seq"]
            yield event

    def new_lines(self, *, rest: bool = False) -> Iterator[str]:
        """Yield the lines that the job has printed since the last call; with `rest` also one that has no end yet."""
        log = self._call("GET", f"{JOBS}/{self.job_id}/logs").content
        fresh = log[len(self.log) :]
        whole = fresh if rest else fresh[: fresh.rfind(b"\n") + 1]
        self.log += whole
        yield from whole.decode(errors="replace").splitlines()

    def _call(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = self.session.request(method, self.url + path, headers=headers, timeout=SECONDS, **options)
        if not answer.ok:
            problem = answer.json()
            told = "; ".join(f"{name}: {' '.join(map(str, why))}" for name, why in problem.get("errors", {}).items())
            raise DemoError(f"{problem.get('detail', answer.reason)} {told}".strip())
        return answer
