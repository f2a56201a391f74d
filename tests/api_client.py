"""Callers of the API, and what they may expect of every refusal."""

import json
import re
from typing import Any

from django.test import Client

from orchestrator.http.errors.problems import MEDIA_TYPE
from tests.db_snapshot import nothing_lost


class Caller:
    """A test client that speaks JSON with one token."""

    def __init__(self, token: str | None = None) -> None:
        self.http = Client(raise_request_exception=False)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, **headers: str) -> Any:
        return self.http.get(path, headers=self.headers | headers)

    def post(self, path: str, body: Any = None, *, content_type: str = "application/json", **headers: str) -> Any:
        raw = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        return self.http.generic("POST", path, raw, content_type=content_type, headers=self.headers | headers)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        raw = b"" if body is None else json.dumps(body).encode()
        return self.http.generic(method, path, raw, content_type="application/json", headers=self.headers | headers)


def without_ids(response: Any) -> str:
    """Return the page of a response without what differs between two equal requests."""
    return re.sub(r'\breq_\w+|(?<=name="csrfmiddlewaretoken" value=")\w+', "", response.content.decode())


def problem_of(response: Any) -> dict[str, Any]:
    """The problem document of a refusal, which it must be."""
    assert response.status_code >= 400, response.content
    assert response["Content-Type"] == MEDIA_TYPE, (response["Content-Type"], response.content)
    document = response.json()
    assert {"type", "title", "status", "detail", "code", "request_id"} <= set(document)
    assert document["status"] == response.status_code
    assert document["request_id"] == response["X-Request-Id"] != ""
    return document


def refused(call: Any, status: int, code: str) -> dict[str, Any]:
    """Make the call, expect this refusal, and that nothing is lost by it. Returns the problem document."""
    with nothing_lost():
        response = call()
    document = problem_of(response)
    assert (response.status_code, document["code"]) == (status, code), document
    return document
