"""Clients that submit and cancel through the bad network, repeat until answered, and record what was acknowledged."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import requests

RUNTIME, ANY = "/v1/runtime/jobs", "/v1/jobs"
ANSWER_SECONDS = 15.0
ABANDONED_SECONDS = 120.0  # without any answer: something is wrong
CANCELED, REPEATED, DEPENDENT = 0.08, 0.05, 0.3


class NeverAnswered(Exception):
    """A request that was sent again and again for two minutes."""


def path_of(body: dict[str, Any]) -> str:
    """Where such a job is submitted."""
    return ANY if "job_type" in body else RUNTIME


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
    token: str
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
        if self.earlier and self.chance.random() < DEPENDENT:
            body = body | {"depends_on": sorted(set(self.chance.choices(self.earlier, k=2)))}
        answer = self.insist(path_of(body), body, key, {201})
        if answer is None:
            return
        job = answer.json()["job_id"]
        self.ledger.submitted[key] = job
        self.earlier.append(job)
        if self.chance.random() < REPEATED:
            self.repeat(key, body, job)
        if self.chance.random() < CANCELED:
            self.cancel(f"{path_of(body)}/{job}/cancel", job)

    def repeat(self, key: str, body: dict[str, Any], job: str) -> None:
        again = self.insist(path_of(body), body, key, {201})
        if again is not None and (again.json()["job_id"], "Idempotency-Replayed" in again.headers) != (job, True):
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
            elif answer.status_code == 503 and "Retry-After" in answer.headers and "code" in answer.json():
                self.ledger.unavailable += 1
            elif answer.status_code in expected:
                return answer
            else:
                self.ledger.wrong.append(f"{path}: {answer.status_code} {answer.text[:300]}")
                return None
            time.sleep(self.chance.uniform(0.1, 0.5))
        raise NeverAnswered(f"{self.name}: {path}: no answer for {ABANDONED_SECONDS:.0f} s")

    def ask(self, path: str, body: dict[str, Any], key: str | None) -> requests.Response | None:
        headers = {"Authorization": f"Bearer {self.token}"} | ({"Idempotency-Key": key} if key else {})
        try:
            return requests.post(self.url + path, json=body, headers=headers, timeout=ANSWER_SECONDS)
        except requests.RequestException:
            return None  # it may have happened or not: the same key finds out
