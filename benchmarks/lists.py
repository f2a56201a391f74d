"""Measures lists and the dashboard among very many jobs, in this process: of the API, of document 004, of the admin."""

from __future__ import annotations

import statistics
import time
from itertools import product
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client

from benchmarks import tenants
from orchestrator.services import job_end
from runtime_jobs.models import Job, Organization
from tests.factories import WorkerFactory, api_token, claimed

PAGES = 15
COMPLETED, FAILED = 100_000, 20_000  # jobs that ended within the last hour, beside a million that wait
JOB_TYPES = ("steps", "scan")  # the type of all jobs, and one without a job
STATUSES = ("queued", "throttled", "running", "completed", "failed", "incident")


def pages(org: str, pool: str, *, scale: float = 1) -> dict[str, Any]:
    """Measure an organization with very many waiting jobs, of which some end before.

    Args:
        org: The organization.
        pool: The pool in which its jobs wait.
        scale: A factor of the number of jobs that end.

    Returns:
        `jobs`: how many there are; `api_ms`, `admin_ms`, `dashboard_ms`: median milliseconds of a page; `api_jobs_ms`:
        of the slowest combination of job type and status, `api_jobs_slowest`: which one, and `api_jobs` of all of them.
    """
    _end_jobs(pool, completed=max(1, int(COMPLETED * scale)), failed=max(1, int(FAILED * scale)))
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE runtime_jobs")  # autovacuum needs minutes for so many new rows
    program = Client(headers={"authorization": f"Bearer {api_token(Organization.objects.get(slug=org))}"})
    person = Client()
    person.force_login(get_user_model().objects.create_superuser("bench"))
    by_filter = {
        f"{job_type} {status}": _median(program, f"/api/jobs?jobType={job_type}&status={status}&limit=50")
        for job_type, status in product(JOB_TYPES, STATUSES)
    }
    return {
        "jobs": Job.objects.count(),
        "api_ms": _median(program, "/v1/jobs?limit=50"),
        "admin_ms": _median(person, "/admin/runtime_jobs/job/"),
        "dashboard_ms": _median(program, "/api/dashboard/metrics"),
        "api_jobs_ms": max(by_filter.values()),
        "api_jobs_slowest": max(by_filter, key=by_filter.__getitem__),
        "api_jobs": by_filter,
    }


def _end_jobs(pool: str, *, completed: int, failed: int) -> None:
    """Let so many jobs of a pool end: one of each by its operations, the others as their copies without events."""
    worker = WorkerFactory(slug=f"{pool}-ends", pool__slug=pool)
    lease = claimed(worker, job_types=("steps",)).lease
    done = job_end.complete(lease_ulid=lease.lease_ulid, worker=worker, result=None)
    lease = claimed(worker, job_types=("steps",)).lease
    broken = job_end.fail(lease_ulid=lease.lease_ulid, worker=worker, reason="command_failed")
    for job, number in ((done, completed), (broken, failed)):
        if number > 1:
            tenants.copy(job, number - 1, events=False)


def _median(client: Client, address: str) -> float:
    took = []
    for _ in range(PAGES):
        began = time.perf_counter()
        answer = client.get(address, HTTP_HOST="127.0.0.1")
        took.append(time.perf_counter() - began)
        assert answer.status_code == 200, (address, answer.status_code)
    return round(statistics.median(took) * 1000, 1)
