"""Compares fifty jobs by GraphQL with the same fifty by `GET /api/jobs`, on one process and in turns.

The query names every member that the list has.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from benchmarks import servers, tenants
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes
from benchmarks.wire import Connection

LAYOUT = "asgi-1"
ORGANIZATION = "graphql"
JOBS = 50
GRAPHQL, REST = "/api/graphql", f"/api/jobs?limit={JOBS}"
QUERY = """query Jobs($first: Int!) {
  jobs(first: $first) {
    results {
      jobId jobType tenant project status nextEligibleAt priority payloadDigest correlationId replayOf requestedBy
      requestedAt attempt cancelRequested createdAt startedAt completedAt
    }
    next
  }
}"""
WARM_UP = 5


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `graphql_vs_rest`, the median of the ratios of pairs, and the medians as `graphql`."""
    tenant = tenants.settled(ORGANIZATION, organizations=[ORGANIZATION], workers=0)
    tenants.fill(ORGANIZATION, ORGANIZATION, 4 * JOBS)
    with servers.serving(cluster, LAYOUT) as server:
        connection = Connection(server.address.host, server.address.port)
        pairs = asyncio.run(_in_turns(connection, tenant.tokens[ORGANIZATION], sizes.samples))
    if not pairs:
        return {"graphql": {"missing": f"this server has no {GRAPHQL}"}}
    return {
        "graphql_vs_rest": round(statistics.median(ours / rest for ours, rest in pairs), 2),
        "graphql": {
            "graphql_ms": round(1000 * statistics.median(ours for ours, _ in pairs), 2),
            "rest_ms": round(1000 * statistics.median(rest for _, rest in pairs), 2),
        },
    }


async def _in_turns(connection: Connection, token: str, samples: int) -> list[tuple[float, float]]:
    """Return the seconds of both requests, so often; none if the server does not know GraphQL."""
    found = []
    body = {"query": QUERY, "variables": {"first": JOBS}}
    try:
        for turn in range(WARM_UP + samples):
            began = time.perf_counter()
            status, answer = await connection.post(GRAPHQL, body, token=token)
            middle = time.perf_counter()
            if status == 404:
                return []
            if status != 200 or "errors" in answer:
                raise RuntimeError(f"{GRAPHQL}: {status} {answer}"[:500])
            listed = await connection.get(REST, token=token)
            ended = time.perf_counter()
            if turn == 0:
                _require_the_same(answer, listed)
            if turn >= WARM_UP:
                found.append((middle - began, ended - middle))
    finally:
        connection.close()
    return found


def _require_the_same(answer: Any, listed: tuple[int, Any]) -> None:
    """Raise RuntimeError unless both have the same jobs with the same members."""
    jobs = answer["data"]["jobs"]["results"]
    status, page = listed
    if status != 200 or len(jobs) != JOBS or jobs != page["results"]:
        raise RuntimeError(f"{REST}: {status}, and {len(jobs)} jobs by GraphQL")
