"""Runners of workflow jobs, and a client that starts runs and changes secrets, each in a thread.

A runner sends one request after the other (contract, section 3). Every second one is as the real one is: a lost answer
ends its chain of tokens, and it abandons the job. The others ask for a new chain and repeat the call.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import tempfile
import threading
import time
from pathlib import Path
from random import Random
from typing import Any, Self
from urllib.parse import urlsplit

import requests

from tests.chaos.client import Client, NeverAnswered
from tests.chaos.workflow_ledger import SentLog, WorkflowLedger
from tests.orchestrator.protocols.git_http.world import run_git
from tests.orchestrator.protocols.shithub.runner import ClaimedJobClient, RunnerClient

LABELS = ["linux"]
ORGANIZATION, REPOSITORY = "chaos", "acme/ci"
ROTATED = "ROTATED"
WORKFLOWS = {
    ".shithub/workflows/ci.yml": """\
on: [push, workflow_dispatch]
jobs:
  build:
    runs-on: linux
    env: {A: "${{ secrets.PLAIN }}"}
    steps:
      - uses: actions/checkout@v4
      - run: make
  test:
    runs-on: linux
    needs: build
    steps:
      - run: make test
  report:
    runs-on: linux
    needs: test
    if: always()
    steps:
      - run: make report
""",
    ".shithub/workflows/deploy.yml": """\
on: [push, workflow_dispatch]
concurrency: {group: deploy, cancel-in-progress: true}
jobs:
  deploy:
    runs-on: linux
    steps:
      - run: make deploy
""",
}
ANSWER_SECONDS = 15.0
POLL_SECONDS = (1.1, 1.6)  # a runner may send 60 heartbeats in a minute
RUN_SECONDS = (0.4, 1.6)  # between two requests for a run
SENDS = 40  # of one call, until the job is abandoned
CHUNKS = (2, 9)  # of a step
FAILED, CANCELED, ROTATIONS, FETCHES, ARTIFACTS, SWAPPED = 0.15, 0.08, 0.3, 0.3, 0.4, 0.1


class JobLost(Exception):
    """The runner does not have the job any more, or does not know what became of its last call."""


class HttpSender:
    """Sends the requests of a `RunnerClient` over the network."""

    def __init__(self, url: str) -> None:
        self.url = url

    def generic(
        self, method: str, path: str, data: bytes, content_type: str, headers: dict[str, str]
    ) -> requests.Response:
        sent = headers | {"Content-Type": content_type}
        return requests.request(method, self.url + path, data=data, headers=sent, timeout=ANSWER_SECONDS)


class WorkflowRunner:
    """One runner.

    Attributes:
        answered_at: The time of its last answer, on the monotonic clock.
    """

    def __init__(self, url: str, token: str, ledger: WorkflowLedger, chance: Random, *, renews: bool) -> None:
        """Prepare.

        Args:
            url: The URL of the server, or of the network before it.
            token: The registration token.
            ledger: Records what is answered.
            chance: Decides what it does.
            renews: Whether it asks for new tokens after a lost answer.
        """
        self._client = RunnerClient(token, HttpSender(url))  # type: ignore[arg-type] # it needs `generic` only
        self._url, self._ledger, self._chance, self._renews = url, ledger, chance, renews
        self.answered_at = 0.0
        self.killed, self.over = threading.Event(), threading.Event()

    def run(self) -> None:
        """Claim and execute jobs until the end."""
        while not self.over.is_set():
            self.killed.clear()
            try:
                claimed = self._poll()
                if claimed is not None:
                    self._execute(claimed)
            except JobLost:
                self._ledger.counts["jobs abandoned"] += 1
            except Exception as error:  # noqa: BLE001 - the report displays it
                self._ledger.wrong.append(f"a workflow runner failed: {error!r}")
            self.over.wait(self._chance.uniform(*POLL_SECONDS))

    def _poll(self) -> ClaimedJobClient | None:
        # A runner of the latest generation lists its jobs, and had none before this call.
        latest: dict[str, Any] = {"active_job_ids": [], "version": "3"} if self._renews else {}
        try:
            response = self._client.heartbeat(labels=LABELS, **latest)
        except requests.RequestException:
            return None
        self.answered_at = time.monotonic()
        if response.status_code == 200:
            return ClaimedJobClient(self._client, response.json())
        if response.status_code not in {204, 429, 503}:
            self._ledger.wrong.append(f"heartbeat: {response.status_code} {response.text[:300]}")
        return None

    def _execute(self, job: ClaimedJobClient) -> None:
        masks = [value.encode() for value in job.job["mask_values"] or []]
        self._call(job, "status", {"status": "running"})
        self._ledger.begun[job.job["id"]] += 1
        if self._chance.random() < FETCHES:
            self._fetch(job)
        for number, step in enumerate(job.steps):
            self._call(job, f"steps/{step['id']}/status", {"status": "running"})
            if step["run"]:
                self._write_log(job, step["id"], masks)
            if self._call(job, "cancel-check")["cancelled"]:
                self._end(job, "cancelled", "cancelled")
                return
            is_last = number == len(job.steps) - 1
            conclusion = "failure" if is_last and self._chance.random() < FAILED else "success"
            self._call(job, f"steps/{step['id']}/status", {"status": "completed", "conclusion": conclusion})
        if self._chance.random() < ARTIFACTS:
            self._upload(job)
        self._end(job, "completed", conclusion)

    def _end(self, job: ClaimedJobClient, status: str, conclusion: str) -> None:
        answered = self._call(job, "status", {"status": status, "conclusion": conclusion})["conclusion"]
        if answered not in {conclusion, "cancelled"}:  # a request to cancel counts more than a failure
            self._ledger.wrong.append(f"job {job.job['id']}: {conclusion} was reported, {answered} answered")
        self._ledger.ends[job.job["id"]] = answered
        self._ledger.counts["jobs ended"] += 1

    # --- The parts of a job -------------------------------------------------------------------------------------------

    def _write_log(self, job: ClaimedJobClient, step: int, masks: list[bytes]) -> None:
        """Append lines with secrets in them, which are cut anywhere; sometimes two chunks are swapped."""
        log = self._ledger.logs.setdefault(step, SentLog(masks))
        chunks = self._cut(self._text(masks))
        order = list(range(len(chunks)))
        if len(order) > 2 and self._chance.random() < SWAPPED:
            place = self._chance.randrange(len(order) - 1)
            order[place], order[place + 1] = order[place + 1], order[place]
        for seq in order:
            log.pending[seq] = chunks[seq]
            chunk = {"seq": seq, "chunk": _base64(chunks[seq]), "step_id": step}
            self._call(job, "logs", chunk)
            log.acknowledged[seq] = log.pending.pop(seq)

    def _text(self, masks: list[bytes]) -> bytes:
        lines = []
        for number in range(self._chance.randrange(5, 60)):
            line = b"%04d %016x" % (number, self._chance.getrandbits(64))
            if masks and self._chance.random() < 0.3:
                secret = self._chance.choice(masks)
                shown = self._chance.choice([secret, secret, _base64(secret).encode(), secret.hex().encode()])
                line += b" token=" + shown * self._chance.choice([1, 1, 2])
            lines.append(line + b"\n")
        return b"".join(lines)

    def _cut(self, text: bytes) -> list[bytes]:
        places = sorted(self._chance.sample(range(1, len(text)), self._chance.randrange(*CHUNKS)))
        return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]

    def _fetch(self, job: ClaimedJobClient) -> None:
        """Fetch the commit as the checkout does. A failure is the network's or the server's, and ends nothing."""
        folder = Path(tempfile.mkdtemp(prefix="rto-chaos-fetch-"))
        try:
            run_git("init", "-q", "--bare", at=folder)
            address = self._url + urlsplit(job.job["checkout_url"]).path
            fetched = run_git(
                "fetch", "-q", "--depth", "1", address, job.job["head_sha"],
                at=folder, secret=job.job["checkout_token"],
            )  # fmt: skip
            self._ledger.counts["fetches" if fetched.returncode == 0 else "failed fetches"] += 1
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _upload(self, job: ClaimedJobClient) -> None:
        """Upload an artifact directly to the storage. Its bytes count if the storage has answered."""
        data = self._chance.randbytes(self._chance.randrange(1, 100_000))
        begun = self._call(job, "artifacts/upload", {"name": f"result-{job.job['id']}", "size_bytes": len(data)})
        if begun is None:
            return  # announced already, by a call whose answer was lost
        for _ in range(5):
            try:
                answer = requests.put(begun["upload_url"], data=data, timeout=ANSWER_SECONDS)
            except requests.RequestException:
                time.sleep(0.5)
                continue
            if answer.status_code == 200:
                self._ledger.artifacts[begun["artifact_id"]] = hashlib.sha256(data).hexdigest()
                self._ledger.counts["artifacts"] += 1
                return
            if answer.status_code < 500:
                self._ledger.wrong.append(f"an upload: {answer.status_code} {answer.text[:300]}")
                return

    # --- Calls --------------------------------------------------------------------------------------------------------

    def _call(self, job: ClaimedJobClient, path: str, body: dict[str, Any] | None = None) -> Any:
        """Make a call until it is answered. Returns None for an artifact whose name is taken.

        Raises:
            JobLost: The job is lost, the runner was killed, or it does not repeat calls.
        """
        for _ in range(SENDS):
            if self.killed.is_set():
                self._ledger.counts["killed in a job"] += 1
                raise JobLost
            try:
                response = job.call(path, body)
            except requests.RequestException:
                self._renew(job)
                continue
            self.answered_at = time.monotonic()
            if response.status_code < 300:
                return response.json()
            if response.status_code == 409 and path == "artifacts/upload":
                self._renew(job)
                return None
            if response.status_code == 401:
                self._renew(job)
            elif response.status_code == 404:
                raise JobLost
            elif response.status_code == 503:
                time.sleep(self._chance.uniform(0.1, 0.5))
            else:
                if response.status_code == 400 and path.endswith("status") and self._renews:
                    # A copy of the heartbeat that claimed the job lists no job. If it arrives after the start, it ends
                    # the job and its steps. Then there is no new chain either.
                    self._renew(job)
                self._ledger.wrong.append(f"{path}: {response.status_code} {response.text[:300]}")
                raise JobLost
        raise JobLost

    def _renew(self, job: ClaimedJobClient) -> None:
        """Start a new chain of tokens.

        Raises:
            JobLost: The job is lost, or the runner knows no new chains.
        """
        if not self._renews:
            raise JobLost
        self._ledger.counts["new chains"] += 1
        for _ in range(SENDS):
            time.sleep(self._chance.uniform(0.1, 0.5))
            try:
                response = self._client.post(f"{job.path}/token")
            except requests.RequestException:
                continue
            if response.status_code == 200:
                job.token = response.json()["token"]
                return
            if response.status_code == 404:
                raise JobLost
            if response.status_code != 503:
                self._ledger.wrong.append(f"a new chain: {response.status_code} {response.text[:300]}")
                raise JobLost
        raise JobLost


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class WorkflowClient:
    """Starts runs, cancels some, and changes a secret, each until it is answered."""

    def __init__(self, client: Client, ledger: WorkflowLedger) -> None:
        """Prepare. The client has the credentials, the pauses and the end."""
        self._client, self._ledger, self._chance = client, ledger, client.chance

    def run(self) -> None:
        number = 0
        try:
            while not self._client.over.wait(self._chance.uniform(*RUN_SECONDS)):
                if self._client.room.is_set():
                    self._start(f"{self._client.name}-{number}")
                    number += 1
        except NeverAnswered as abandoned:
            self._ledger.wrong.append(str(abandoned))

    def _start(self, key: str) -> None:
        if self._chance.random() < ROTATIONS:
            self._rotate()
        body = {"org_slug": ORGANIZATION, "repository": REPOSITORY, "ref": "main"}
        body["workflow_file"] = self._chance.choice(sorted(WORKFLOWS))
        answer = self._client.insist("/v1/batches", body, key, {201})
        if answer is None:
            return
        self._ledger.runs[key] = [job["job_id"] for job in answer.json()["jobs"]]
        if self._chance.random() < CANCELED:
            batch = answer.json()["batch_id"]
            if self._client.insist(f"/v1/batches/{batch}/cancel", {"reason": "chaos"}, None, {200, 202}) is not None:
                self._ledger.canceled.add(batch)

    def _rotate(self) -> None:
        """Set a new value. Whether it was stored or not, no log of a job that has it may contain it."""
        value = f"rotated-{self._chance.getrandbits(80):020x}\nsecond line {self._chance.getrandbits(64):016x}"
        self._ledger.secrets.update(value.encode().splitlines())
        address = f"{self._client.url}/v1/secrets/{ROTATED}"
        body = {"org_slug": ORGANIZATION, "value": value}
        headers = {"Authorization": f"Bearer {self._client.credentials.token}"}
        try:
            answer = requests.put(address, json=body, headers=headers, timeout=ANSWER_SECONDS)
        except requests.RequestException:
            return
        if answer.status_code not in {200, 201, 503}:
            self._ledger.wrong.append(f"a secret: {answer.status_code} {answer.text[:300]}")


class WorkflowFleet:
    """All runners of workflow jobs of a run, each in a thread."""

    def __init__(self, url: str, tokens: list[str], seed: int, secrets: set[bytes]) -> None:
        """Prepare.

        Args:
            url: The URL of the server, or of the network before it.
            tokens: The registration tokens.
            seed: The seed of the run.
            secrets: The secrets that exist at the beginning.
        """
        self.ledger = WorkflowLedger(secrets=set(secrets))
        self._runners = [
            WorkflowRunner(url, token, self.ledger, Random(f"{seed}/workflow-runner/{number}"), renews=number % 2 == 0)
            for number, token in enumerate(tokens)
        ]
        self._threads = [threading.Thread(target=runner.run, daemon=True) for runner in self._runners]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for runner in self._runners:
            runner.over.set()
            runner.killed.set()
        for thread in self._threads:
            thread.join(60)

    def __len__(self) -> int:
        return len(self._runners)

    def kill(self, number: int) -> None:
        """Let a runner forget its job, as a new process of it does."""
        self._runners[number].killed.set()

    def has_answered_since(self, number: int, began: float) -> bool:
        """Return whether the runner received an answer after that time of the monotonic clock."""
        return self._runners[number].answered_at > began
