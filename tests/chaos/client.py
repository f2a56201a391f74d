"""Clients that submit and cancel through the bad network, repeat until answered, and record what was acknowledged."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import requests

from runtime_jobs.identifiers import public_id_of

RUNTIME, ANY, RUN = "/v1/runtime/jobs", "/v1/jobs", "/v0/run"
ANSWER_SECONDS = 15.0
ABANDONED_SECONDS = 120.0  # without any answer: something is wrong
CANCELED, REPEATED, DEPENDENT = 0.08, 0.05, 0.3


class NeverAnswered(Exception):
    """A request that was sent again and again for two minutes."""


def path_of(body: dict[str, Any]) -> str:
    """Where such a job is submitted."""
    if "job" in body:
        return RUN
    return ANY if "job_type" in body else RUNTIME


def job_of(answer: requests.Response) -> str:
    """Return the id of the job in the response to a submit, in the form of the native API."""
    document = answer.json()
    return public_id_of("rtj", UUID(document["job"])) if "job" in document else document["job_id"]


@dataclass(frozen=True)
class Credentials:
    """The token of the organization, and the key of the project that submits runs."""

    token: str
    run_key: str

    def request(self, path: str, body: dict[str, Any], key: str | None) -> dict[str, Any]:
        """Return the arguments of `requests.post`. The idempotency key of a run is a member of its body."""
        if path == RUN:
            assert key is not None
            headers = {"Authorization": f"Bearer {self.run_key}"}
            return {"json": body | {"idempotency_key": str(uuid5(NAMESPACE_URL, key))}, "headers": headers}
        headers = {"Authorization": f"Bearer {self.token}"} | ({"Idempotency-Key": key} if key else {})
        return {"json": body, "headers": headers}


def is_unavailable(answer: requests.Response) -> bool:
    """Return whether the response is one of those that clients repeat, in the format of its protocol."""
    if answer.status_code != 503 or "Retry-After" not in answer.headers:
        return False
    return bool({"code", "error_code"} & answer.json().keys())


@dataclass
class Ledger:
    """The acknowledgements of the server: job by key, and the jobs whose cancel was accepted.

    `wrong` are answers that no fault excuses.
    """

    submitted: dict[str, str] = field(default_factory=dict)
    canceled: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    unavailable: int = 0
    unanswered: int = 0


@dataclass
class Client:
    """One thread. `room` is clear while enough jobs wait."""

    name: str
    url: str
    credentials: Credentials
    bodies: list[dict[str, Any]]
    ledger: Ledger
    room: threading.Event
    over: threading.Event
    chance: Random
    earlier: deque[str] = field(default_factory=lambda: deque(maxlen=4))

    def run(self) -> None:
        number = 0
        try:
            while not self.over.is_set():
                if self.room.wait(0.2):
                    self.submit(f"{self.name}-{number}")
                    number += 1
        except NeverAnswered as abandoned:
            self.ledger.wrong.append(str(abandoned))

    def submit(self, key: str) -> None:
        body = self.chance.choice(self.bodies)
        if self.earlier and self.chance.random() < DEPENDENT and path_of(body) != RUN:
            body = body | {"depends_on": sorted(set(self.chance.choices(self.earlier, k=2)))}
        answer = self.insist(path_of(body), body, key, {201})
        if answer is None:
            return
        job = job_of(answer)
        self.ledger.submitted[key] = job
        self.earlier.append(job)
        if self.chance.random() < REPEATED:
            self.repeat(key, body, job)
        if self.chance.random() < CANCELED:
            self.cancel(f"{RUNTIME if path_of(body) == RUNTIME else ANY}/{job}/cancel", job)

    def repeat(self, key: str, body: dict[str, Any], job: str) -> None:
        again = self.insist(path_of(body), body, key, {201})
        if again is None:
            return
        is_replayed = path_of(body) == RUN or "Idempotency-Replayed" in again.headers
        if (job_of(again), is_replayed) != (job, True):
            self.ledger.wrong.append(f"{key}: sent again, another job")

    def cancel(self, path: str, job: str) -> None:
        answer = self.insist(path, {"reason": "chaos"}, None, {200, 202, 409})
        if answer is not None and answer.status_code != 409:
            self.ledger.canceled.add(job)

    def insist(self, path: str, body: dict[str, Any], key: str | None, expected: set[int]) -> requests.Response | None:
        """Ask until there is an answer; None for one that no fault excuses, which is written down."""
        began = time.monotonic()
        while time.monotonic() - began < ABANDONED_SECONDS:
            answer = self.ask(path, body, key)
            if answer is None:
                self.ledger.unanswered += 1
            elif is_unavailable(answer):
                self.ledger.unavailable += 1
            elif answer.status_code in expected:
                return answer
            else:
                self.ledger.wrong.append(f"{path}: {answer.status_code} {answer.text[:300]}")
                return None
            time.sleep(self.chance.uniform(0.1, 0.5))
        raise NeverAnswered(f"{self.name}: {path}: no answer for {ABANDONED_SECONDS:.0f} s")

    def ask(self, path: str, body: dict[str, Any], key: str | None) -> requests.Response | None:
        try:
            return requests.post(self.url + path, **self.credentials.request(path, body, key), timeout=ANSWER_SECONDS)
        except requests.RequestException:
            return None  # it may have happened or not: the same key finds out
