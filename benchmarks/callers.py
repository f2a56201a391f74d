"""Clients of the native API: a tenant and a worker.

Each call is timed. An unexpected response is counted and ends the round to which it belongs.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.histogram import Tally
from benchmarks.wire import Connection, Gone

COMPLETED = {"result": {"status": "succeeded", "exit_code": 0}}
NEXT_LEASE = "next_lease"  # field of a completion's response: the lease that `claim_next` brought, or null
PATIENCE = 60.0  # seconds for which a caller that insists repeats a request without a response


class Unexpected(Exception):
    """A status that this call does not have when all is well."""


class Caller:
    """`insists`: send a request again, under the same key, until it is answered."""

    def __init__(self, host: str, port: int, token: str, tally: Tally, *, insists: bool = False) -> None:
        self.connection = Connection(host, port)
        self.token, self.tally, self.insists = token, tally, insists

    async def call(self, name: str, path: str, body: Any, expected: tuple[int, ...], key: str = "") -> tuple[int, Any]:
        began = time.monotonic()
        status, answer = await self._answer(path, body, key)
        self.tally.called(name, began)
        if status not in expected:
            self.tally.surprises[f"{name} {status} {_reason(answer)}"[:300]] += 1
            raise Unexpected(name)
        return status, answer

    async def _answer(self, path: str, body: Any, key: str) -> tuple[int, Any]:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                status, answer = await self.connection.post(path, body, token=self.token, key=key)
                if not self.insists or status != 503 or time.monotonic() > until:
                    return status, answer
            except Gone:
                if not self.insists or time.monotonic() > until:
                    raise
                self.tally.counts["unanswered"] += 1
            await asyncio.sleep(0.05)


class TenantCaller(Caller):
    async def submit(self, body: dict[str, Any], key: str = "") -> str:
        _, job = await self.call("submit", "/v1/jobs", body, (201,), key)
        return job["job_id"]

    async def submit_many(self, bodies: list[dict[str, Any]]) -> list[str]:
        _, answer = await self.call("submit_many", "/v1/jobs/bulk", {"jobs": bodies}, (200,))
        return [result["body"]["job_id"] for result in _good(answer["results"], 201, self.tally)]


class WorkerCaller(Caller):
    """One process of a registered worker."""

    def __init__(self, worker: tuple[str, str], host: str, port: int, tally: Tally, **options: Any) -> None:
        super().__init__(host, port, worker[1], tally, **options)
        self.offer = {"worker_id": worker[0], "job_types": ["steps"], "acknowledge": True}

    async def claim(self, key: str = "", *, acknowledge: bool = True, wait_seconds: int = 0) -> dict[str, Any] | None:
        offer = self.offer | {"acknowledge": acknowledge} | ({"wait_seconds": wait_seconds} if wait_seconds else {})
        status, lease = await self.call("claim", "/v1/runtime/leases", offer, (201, 204), key)
        return lease if status == 201 else None

    async def claim_many(self, limit: int) -> list[dict[str, Any]]:
        offer = self.offer | {"max_leases": limit}
        status, answer = await self.call("claim_many", "/v1/runtime/leases", offer, (201, 204))
        return answer["leases"] if status == 201 else []

    async def report(self, operation: str, lease_id: str, body: dict[str, Any] | None = None) -> Any:
        _, answer = await self.call(operation, f"/v1/runtime/leases/{lease_id}/{operation}", body or {}, (200,))
        return answer

    async def complete_and_claim(self, lease_id: str) -> dict[str, Any] | None:
        """Complete the lease and claim the next one by the same call."""
        body = COMPLETED | {"claim_next": self.offer | {"acknowledge": False}}
        return (await self.report("complete", lease_id, body)).get(NEXT_LEASE)

    async def report_many(self, operation: str, lease_ids: list[str], body: dict[str, Any] | None = None) -> int:
        entries = [{"lease_id": lease_id, **(body or {})} for lease_id in lease_ids]
        path = f"/v1/runtime/leases/{operation}"
        _, answer = await self.call(f"{operation}_many", path, {"leases": entries}, (200,))
        return len(_good(answer["results"], 200, self.tally))


class RunnerCaller(Caller):
    """One runner of workflow jobs. Each call about its job uses a token, and its response contains the next one.

    Attributes:
        job: The key of its job.
        steps: The keys of the job's steps.
    """

    def __init__(self, runner: tuple[str, str], host: str, port: int, tally: Tally, **options: Any) -> None:
        super().__init__(host, port, runner[1], tally, **options)
        self.job, self.steps = 0, [0]

    async def claim(self) -> str | None:
        """Claim the next job by a heartbeat, and return the first token of its chain; None without a job."""
        status, answer = await self.call("runner_claim", "/api/v1/runners/heartbeat", {}, (200, 204))
        if status == 204:
            return None
        self.job, self.steps = answer["job"]["id"], [step["id"] for step in answer["job"]["steps"]]
        return str(answer["token"])

    async def report(self, name: str, path: str, body: dict[str, Any]) -> Any:
        """Send a call about the job, and keep the next token."""
        _, answer = await self.call(name, f"/api/v1/jobs/{self.job}/{path}", body, (200, 202))
        self.token = answer["next_token"]
        return answer


def _reason(answer: Any) -> Any:
    """Of a problem document what is the same each time; no ids."""
    return [answer.get("code"), answer.get("errors")] if isinstance(answer, dict) else answer


def _good(results: list[dict[str, Any]], status: int, tally: Tally) -> list[dict[str, Any]]:
    for result in results:
        if result["status"] != status:
            tally.surprises[f"one of many {result['status']} {_reason(result.get('error'))}"[:300]] += 1
    return [result for result in results if result["status"] == status]
