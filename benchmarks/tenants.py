"""Creates the tenants, workers and waiting jobs of a scenario.

Jobs are of type `steps` without a repository, so that only the lifecycle is measured; no worker executes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connection

from runtime_jobs.models import Job, JobEvent, Organization, Project
from tests.factories import (
    OrganizationFactory,
    PlanFactory,
    PoolFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    submitted_steps,
)
from workers.models import Worker

MOST_HELD = 256  # leases that a worker may have at once
# Jobs and workers are numbered from here: nine digits that nothing else in the SQL of an operation has, so that
# `pgbench` can replace them. Their public ids end with the same digits.
FIRST_JOB = 700_000_001
FIRST_WORKER = 800_000_001


@dataclass(frozen=True)
class Tenants:
    """Holds a pool of its own, with the API tokens of its organizations and the id and token of each worker."""

    pool: str
    tokens: dict[str, str]
    workers: list[tuple[str, str]]


def settled(pool: str, *, organizations: list[str], workers: int, policy: str = "fifo") -> Tenants:
    """`policy`: by which the pool serves its tenants. Their plan has no submit quota: the load is the benchmark's."""
    row = PoolFactory(slug=pool, policy=policy)
    tokens = {org: api_token(project(org, pool).organization) for org in organizations}
    hired = [_hired(row, number) for number in range(workers)]
    return Tenants(pool, tokens, [(worker.worker_id, worker.token) for worker in hired])


def project(org: str, pool: str) -> Project:
    """Return the project of an organization whose jobs wait in the pool; it is created if it is missing."""
    return ProjectFactory(organization=OrganizationFactory(slug=org, plan=_plan()), pool=pool)


def _plan() -> Any:
    # Not `team`: the migrations create that one, with a quota.
    return PlanFactory(name="benchmark", max_queued=None, submits_per_minute=None)


def _hired(pool: Any, number: int) -> Any:
    key = FIRST_WORKER + Worker.objects.count()
    return WorkerFactory(
        id=key, worker_id=f"wrk_{key:026}", slug=f"{pool.slug}-{number}", pool=pool, capacity=MOST_HELD
    )


def fill(org: str, pool: str, jobs: int, *, events: bool = True) -> None:
    """Let so many jobs wait: one by the operation, the others as its copies with the copies of its event.

    `events=False`: without events, where there are a million and no audit follows.
    """
    if jobs < 1:
        return
    owner = project(org, pool)
    number_jobs()
    first = submitted_steps(owner)
    if jobs > 1:
        copy(first, jobs - 1, events=events)


def number_jobs() -> None:
    """Let the next jobs be numbered from FIRST_JOB, so that `copy` can derive their public ids."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT setval('runtime_jobs_id_seq', greatest(last_value, %s)) FROM runtime_jobs_id_seq", [FIRST_JOB]
        )


def one_each(orgs: list[str], pool: str) -> None:
    """Let one job of each of these new tenants wait, by the operation."""
    plan = _plan()
    made = Organization.objects.bulk_create(
        Organization(slug=org, name=org, plan=plan, hosted_runtime_analysis=True) for org in orgs
    )
    projects = Project.objects.bulk_create(
        # `save` would choose the public name, but is not called.
        Project(organization=organization, slug="web", public_slug=organization.slug, enabled=True, pool=pool)
        for organization in made
    )
    for owner in projects:
        submitted_steps(owner)


def body(org: str) -> dict[str, Any]:
    """Return the body that a client submits."""
    return {
        "org_slug": org,
        "project_slug": "web",
        "job_type": "steps",
        "spec": {"name": "unit", "steps": ["true"], "timeout_seconds": 300},
        "trigger": {"kind": "manual"},
    }


def copy(first: Job, times: int, *, events: bool) -> None:
    """Let so many copies of a waiting job wait, with copies of its event or without events."""
    # An id is as long as a ULID, and of digits that none made since 1970 begins with.
    of_job = {"id": "new.id", "job_ulid": "new.ulid", "root_job_ulid": "new.ulid"}
    of_event = {
        "id": "nextval('runtime_job_events_id_seq')",
        "job_ulid": "new.ulid",
        "event_ulid": "'evt' || substr(new.ulid, 4)",
    }
    with connection.cursor() as cursor:
        cursor.execute(
            f"""WITH new AS MATERIALIZED (
                    SELECT id, 'rtj_' || lpad(id::text, 26, '0') AS ulid FROM
                    (SELECT nextval('runtime_jobs_id_seq') AS id FROM generate_series(1, %(times)s)) numbers
                ), jobs AS (
                    INSERT INTO runtime_jobs ({columns(Job)})
                    SELECT {columns(Job, of_job)} FROM runtime_jobs old, new WHERE old.id = %(first)s
                )
                INSERT INTO runtime_job_events ({columns(JobEvent)})
                SELECT {columns(JobEvent, of_event)} FROM runtime_job_events old, new
                 WHERE old.job_ulid = %(ulid)s AND %(events)s""",
            {"times": times, "first": first.pk, "ulid": first.job_ulid, "events": events},
        )
        cursor.execute("ANALYZE runtime_jobs")


def columns(model: Any, others: dict[str, str] | None = None) -> str:
    """Return the columns of a model for an INSERT. With `others`: what a copy has in them, those or the old row's."""
    names = [field.column for field in model._meta.concrete_fields if not field.generated]  # noqa: SLF001 Django's name
    if others is None:
        return ", ".join(f'"{name}"' for name in names)
    return ", ".join(others.get(name, f'old."{name}"') for name in names)
