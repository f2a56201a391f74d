"""Long polls: a claim that finds nothing is asked again until its time is up, holding no database connection."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from orchestrator.looks import awaited

PERIOD = 0.25  # seconds between two looks
LONGEST = 60.0


def patient(view: Callable[..., HttpResponse]) -> Callable[..., Any]:
    """Repeat a view that answers 204 for as long as the body's `wait_seconds` allow."""
    look = awaited(view)

    @csrf_exempt  # DRF asks for the token itself, where a session is used
    async def waiting(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        until = time.monotonic() + _wait_seconds(request)
        response = await look(request, **kwargs)
        while response.status_code == 204 and time.monotonic() < until:
            await asyncio.sleep(min(PERIOD, max(0.0, until - time.monotonic())))
            response = await look(request, **kwargs)
        return response

    return waiting


def _wait_seconds(request: HttpRequest) -> float:
    """Read generously here: the view itself refuses what is wrong, at the first look."""
    try:
        wanted = json.loads(request.body)["wait_seconds"]
        return min(LONGEST, max(0.0, float(wanted)))
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0.0
