"""Reduces recorded requests to what two programs that play one story have in common, without time and place."""

import base64
import json
import re
from typing import Any, NamedTuple

from tests.orchestrator.protocols.shithub.stories.recording import API, HEARTBEAT, Call

REDACTED = "a.b.c"
JSON_WEB_TOKEN = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]+")
_TIME = re.compile(r'"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{0,8}[1-9])?Z"')
_PATH = re.compile(rf"{API}jobs/(\d+)/(?:steps/(\d+)/)?([a-z-]+)")
_STEP = re.compile(r'"step_id":(\d+)')
# The output of git depends on its version and on the address of the server; the frame around it is the runner's own.
_OF_GIT = re.compile(r"\A(Checking out )\S+( at \w+\n).*?((?:Checked out \w+\n)?)\Z", re.DOTALL)


class Requests(NamedTuple):
    """The requests of a story.

    Attributes:
        heartbeats: The forms of heartbeats.
        jobs: The reports about each job in order, and the logs of its steps. The jobs are sorted by what they report.
    """

    heartbeats: list[str]
    jobs: list[list[tuple[str, ...]]]


def with_numbers(calls: list[Call]) -> list[Call]:
    """Replace the ids of jobs by their numbers in the order of appearance, and those of steps by theirs in the job."""
    jobs: dict[str, int] = {}
    steps: dict[tuple[str, str], int] = {}

    def step(job: str, value: str) -> int:
        return steps.setdefault((job, value), sum(of == job for of, _ in steps) + 1)

    found = []
    for call in calls:
        path, body = call["path"], call["body"]
        if match := _PATH.fullmatch(path):
            job = match[1]
            middle = f"steps/{step(job, match[2])}/" if match[2] else ""
            path = f"{API}jobs/{jobs.setdefault(job, len(jobs) + 1)}/{middle}{match[3]}"
            if part := _STEP.search(body):
                body = body.replace(part[0], f'"step_id":{step(job, part[1])}')
        found.append(call | {"path": path, "body": body})
    return found


def requests_of(calls: list[Call]) -> Requests:
    """Return the requests. When cancel-checks come and where a log is split depends on time, so neither counts."""
    heartbeats: set[str] = set()
    jobs: dict[str, list[tuple[str, ...]]] = {}
    logs: dict[tuple[str, int], list[bytes]] = {}
    for call in with_numbers(calls):
        path, body = call["path"], call["body"]
        if path == HEARTBEAT:
            heartbeats.add(body)
            continue
        match = _PATH.fullmatch(path)
        assert match, path
        reports = jobs.setdefault(match[1], [])
        if match[3] == "cancel-check":
            assert body == "{}\n", body
        elif match[3] == "logs":
            chunk = json.loads(body)
            parts = logs.setdefault((match[1], chunk["step_id"]), [])
            _add_chunk(parts, chunk)
            if len(parts) == 1:
                reports.append(("log", str(chunk["step_id"])))
        else:
            reports.append((path.removeprefix(f"{API}jobs/{match[1]}/"), _TIME.sub('"time"', body)))
    for (job, step), parts in logs.items():
        text = JSON_WEB_TOKEN.sub(REDACTED, b"".join(parts).decode())
        jobs[job] = [
            (*entry, _OF_GIT.sub(r"\1URL\2\3", text)) if entry == ("log", str(step)) else entry for entry in jobs[job]
        ]
    return Requests(sorted(heartbeats), sorted(jobs.values()))


def _add_chunk(parts: list[bytes], chunk: dict[str, Any]) -> None:
    assert list(chunk) == ["seq", "chunk", "step_id"], "the members of a chunk in this order"
    assert chunk["seq"] == len(parts), "numbers from 0 without a gap"
    data = base64.b64decode(chunk["chunk"], validate=True)
    assert data, "an empty chunk is not sent"
    parts.append(data)


def headers_of(calls: list[Call]) -> list[dict[str, str]]:
    """Return each form of headers once, without the name of the program."""
    found: list[dict[str, str]] = []
    for call in calls:
        assert "User-Agent" in call["headers"]
        headers = {name: value for name, value in sorted(call["headers"].items()) if name != "User-Agent"}
        if headers not in found:
            found.append(headers)
    return sorted(found, key=lambda headers: headers["Authorization"])


def without_places(body: str, places: dict[str, str]) -> str:
    """Replace the places of this machine, and JSON Web Tokens, in a chunk of a log.

    Args:
        body: The body of a call.
        places: Texts and what is put into their place.
    """
    found = re.search(r'"chunk":"([^"]+)"', body)
    if found is None:
        return body
    text = base64.b64decode(found[1]).decode()
    for place, name in places.items():
        text = text.replace(place, name)
    text = JSON_WEB_TOKEN.sub(REDACTED, text)
    return body.replace(found[1], base64.b64encode(text.encode()).decode())
