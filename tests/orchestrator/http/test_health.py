"""Readiness under ASGI: one check for all probes, in a thread of its own."""

import asyncio
import threading

from orchestrator.http.asgi.router import Router
from orchestrator.http.observability import health
from orchestrator.http.observability.health import Readiness


async def never(_scope, _receive, _send):
    raise AssertionError("a health check takes no thread of the requests")


def test_many_probes_share_one_check():
    release, checks = threading.Event(), []

    def check():
        checks.append(threading.current_thread().name)
        assert release.wait(20)
        return ["clock"]

    async def scene():
        readiness = Readiness(check)
        probes = [asyncio.create_task(readiness.problems()) for _ in range(50)]
        await asyncio.sleep(0)
        probes[0].cancel()  # a client that disconnects does not end the check of the others
        await asyncio.sleep(0)
        release.set()
        assert await asyncio.gather(*probes[1:]) == [["clock"]] * 49
        assert await readiness.problems() == ["clock"]

    asyncio.run(scene())
    assert len(checks) == 1
    assert checks[0].startswith("readiness")


def test_a_result_is_used_for_a_second(monkeypatch):
    results = [["clock"], []]
    now = [1000.0]
    monkeypatch.setattr(health.time, "monotonic", lambda: now[0])

    async def scene():
        readiness = Readiness(lambda: results.pop(0))
        assert await readiness.problems() == ["clock"]
        now[0] += 0.9
        assert await readiness.problems() == ["clock"]
        now[0] += 0.2
        assert await readiness.problems() == []

    asyncio.run(scene())


def test_a_result_that_took_long_is_not_used_again(monkeypatch):
    results = [["clock"], []]
    now = [1000.0]
    monkeypatch.setattr(health.time, "monotonic", lambda: now[0])

    def slow_check():
        now[0] += 5
        return results.pop(0)

    async def scene():
        readiness = Readiness(slow_check)
        assert await readiness.problems() == ["clock"]
        assert await readiness.problems() == []

    asyncio.run(scene())


def test_a_check_that_raises_is_repeated():
    results = [ZeroDivisionError(), []]

    def check():
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    async def scene():
        readiness = Readiness(check)
        outcomes = [await asyncio.gather(readiness.problems(), return_exceptions=True) for _ in range(2)]
        assert [type(found) for (found,) in outcomes] == [ZeroDivisionError, list]

    asyncio.run(scene())


def test_the_router_answers_both_health_checks():
    async def answered(path, method="GET", query=b""):
        sent = []

        async def send(message):
            sent.append(message)

        router = Router(requests=never, long_polls=never)
        router.readiness = Readiness(lambda: ["database"])
        scope = {"type": "http", "path": path, "method": method, "query_string": query, "headers": []}
        await router(scope, None, send)
        return sent[0]["status"], sent[1]["body"]

    assert asyncio.run(answered("/healthz")) == (200, b'{"status": "alive"}')
    assert asyncio.run(answered("/readyz")) == (503, b'{"status": "unready", "wrong": ["database"]}')
    assert asyncio.run(answered("/readyz", "HEAD")) == (503, b"")
