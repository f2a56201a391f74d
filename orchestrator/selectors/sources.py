"""Reads the sources of jobs: organizations, their job types and projects, each with the pause or throttle on it.

A source is no row of its own. It exists with the organization or project, and its status is that of the limits on it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django.db import connection

from leases.models import LimitScope
from leases.scheduling.limits import ALL_TYPES, LimitTarget
from runtime_jobs.specs import JOB_TYPES

MAX_PER_LANE, MAX_QUEUED = 10_000, 100_000
STATUSES = ("active", "paused", "throttled")
_ORGANIZATION, _TYPE, _PROJECT = 0, 1, 2  # ranks within an organization


class _Row(NamedTuple):
    organization_id: int
    rank: int
    name: str
    org_slug: str
    status: str
    until: datetime | None
    set_by: str
    note: str
    set_at: datetime | None
    per_hour: int | None
    burst: int | None


@dataclass(frozen=True)
class JobSource:
    """A source of jobs.

    Attributes:
        key: The place in the list of sources.
        org_slug: The organization. Empty: all organizations.
        job_type: The job type, or None.
        project: The slug of the project, or None.
        status: One of `STATUSES`. A source that is paused and throttled is paused.
        until: When the pause or throttle ends. None: when it is removed.
        set_by: The actor that paused or throttled it, or an empty text.
        note: The reason that was given.
        set_at: When it was paused or throttled, or None.
        per_hour: The starts per hour while it is throttled, or None.
        burst: The starts that a throttle allows at once, or None.
        queued: Its queued jobs, counted up to `MAX_PER_LANE` of a lane and `MAX_QUEUED` of a page.
    """

    key: tuple[int, int, str]
    org_slug: str
    job_type: str | None
    project: str | None
    status: str
    until: datetime | None
    set_by: str
    note: str
    set_at: datetime | None
    per_hour: int | None
    burst: int | None
    queued: int = 0

    @property
    def target(self) -> LimitTarget:
        """The jobs of the source."""
        if self.project is not None:
            return LimitTarget.of_project(self.org_slug, self.project)
        if self.org_slug:
            return LimitTarget.of_organization(self.org_slug, self.job_type or ALL_TYPES)
        return LimitTarget(LimitScope.JOB_TYPE, "", self.job_type or "")


@dataclass(frozen=True)
class SourceRows:
    """The list of sources, for pages by key: organizations, newest first, each with its job types and projects.

    Attributes:
        organizations: The slugs of the organizations. Empty: the job types of all together. None: every one of these.
        status: Only sources with this status, or None.
        target: Only this source, or None.
    """

    organizations: Collection[str] | None
    status: str | None = None
    target: LimitTarget | None = None

    def fetch(self, after: Sequence[Any] | None, count: int, *, backward: bool) -> list[JobSource]:
        """Return up to `count` sources after the key `after`, or before it, the nearest first."""
        values: dict[str, Any] = {
            "organizations": None if self.organizations is None else list(self.organizations),
            "types": list(JOB_TYPES),
            "status": self.status,
            "scope": self.target and str(self.target.scope),
            "key": self.target and self.target.key,
            "organization_id": after and after[0],
            "rank": after and after[1],
            "name": after and after[2],
            "count": count,
        }
        with connection.cursor() as cursor:
            cursor.execute(_page_sql(backward=backward), values)
            rows = [_Row(*row) for row in cursor.fetchall()]
        return _with_queues([_source(row) for row in rows])


def read_source(target: LimitTarget) -> JobSource | None:
    """Return the source of a target, or None if its organization or project does not exist."""
    return next(iter(SourceRows([target.org_slug], target=target).fetch(None, 1, backward=False)), None)


def _source(row: _Row) -> JobSource:
    return JobSource(
        (row.organization_id, row.rank, row.name),
        row.org_slug,
        row.name if row.rank == _TYPE else None,
        row.name if row.rank == _PROJECT else None,
        *row[4:],
    )


def _with_queues(sources: list[JobSource]) -> list[JobSource]:
    """Return the sources with the number of their queued jobs, which one statement counts."""
    if not sources:
        return []
    everywhere = any(not source.org_slug for source in sources)
    values = {
        "organizations": None if everywhere else list({source.org_slug for source in sources}),
        "per_lane": MAX_PER_LANE,
        "in_all": MAX_QUEUED,
    }
    with connection.cursor() as cursor:
        cursor.execute(_sql("source_queues"), values)
        counts = cursor.fetchall()

    def queued(source: JobSource) -> int:
        return sum(
            number
            for org_slug, project, job_type, number in counts
            if source.org_slug in {"", org_slug}
            and source.project in {None, project}
            and source.job_type in {None, job_type}
        )

    return [replace(source, queued=queued(source)) for source in sources]


@cache
def _page_sql(*, backward: bool) -> str:
    """Return the statement of a page: the SQL file has the order of pages that go forward."""
    text = _sql("sources")
    if not backward:
        return text
    for forward, reverse in (("/* after */ >", "<"), ("/* beyond */ <=", ">="), ("/* order */ DESC", "ASC")):
        text = text.replace(forward, reverse)
    return text.replace("/* then */ ASC", "DESC")


@cache
def _sql(name: str) -> str:
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_text()
