"""Measures the first pages of lists among very many jobs: the API's and the admin's, in this process."""

from __future__ import annotations

import statistics
import time

from django.contrib.auth import get_user_model
from django.test import Client

from runtime_jobs.models import Job, Organization
from tests.factories import api_token

PAGES = 15


def pages(org: str) -> dict[str, float]:
    """`jobs`: how many there are; `api_ms`, `admin_ms`: median milliseconds of a page."""
    program = Client(headers={"authorization": f"Bearer {api_token(Organization.objects.get(slug=org))}"})
    person = Client()
    person.force_login(get_user_model().objects.create_superuser("bench"))
    return {
        "jobs": Job.objects.count(),
        "api_ms": _median(program, "/v1/jobs?limit=50"),
        "admin_ms": _median(person, "/admin/runtime_jobs/job/"),
    }


def _median(client: Client, address: str) -> float:
    took = []
    for _ in range(PAGES):
        began = time.perf_counter()
        answer = client.get(address, HTTP_HOST="127.0.0.1")
        took.append(time.perf_counter() - began)
        assert answer.status_code == 200, (address, answer.status_code)
    return round(statistics.median(took) * 1000, 1)
