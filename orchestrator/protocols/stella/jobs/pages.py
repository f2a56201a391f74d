"""Pages of jobs, newest first, by cursor, of which a status that no query expresses selects some.

A queued job is throttled if one of its limits is full now. So a page reads candidates in groups, and keeps those with
the status. It reads a limited number of them: a page may have fewer jobs than `limit`, or none, and a `next` all the
same.
"""

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple

from django.db.models import BooleanField, F, Func, Q
from django.db.models.fields.json import KT
from rest_framework.pagination import Cursor
from rest_framework.request import Request

from orchestrator.http.api.pagination import NewestFirst
from orchestrator.selectors.orchestration_statuses import JobStanding, standings_of
from orchestrator.selectors.pending_reasons.limits import blocked_lanes
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import KEY_OF_QUEUED, IndexPart, JobQuerySet
from runtime_jobs.orchestration_status import OrchestrationStatus
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import JobState

GROUP: Final = 200
MAX_CANDIDATES: Final = 1000
MAX_PARTS: Final = 36  # of a page: all types of four organizations
# The words of the native API for completed jobs, with and without a run in ingest. `isfinite` selects the partial
# indexes of jobs that have ended. IS NOT NULL would, too, but the planner knows how many jobs have that, and multiplies
# it with how many have the word: where few have ended it expected two of 1,500, and read and sorted all.
HAS_ENDED: Final = Func(F("finished_at"), function="isfinite", output_field=BooleanField())
COMPLETED: Final = [Q(HAS_ENDED, status=word) for word in ("uploaded", "succeeded")]


class ListedJob(NamedTuple):
    """A job of a page with its status.

    Attributes:
        job: The job, without `spec` and `result`.
        standing: Its status.
        requested_at: When the client says that the job was requested, or None.
    """

    job: Job
    standing: JobStanding
    requested_at: str | None


# Whether a job has one of these statuses depends on more than its row.
_CHECKED: Final = frozenset({OrchestrationStatus.QUEUED, OrchestrationStatus.THROTTLED, OrchestrationStatus.FAILED})


def in_blocked_lanes(jobs: JobQuerySet, tenants: tuple[str, ...] | None) -> JobQuerySet:
    """Return those jobs that a limit may block: all throttled ones, and few others, among any number of queued ones.

    Args:
        jobs: The candidates.
        tenants: Their tenants, or None for all.
    """
    lanes = None if tenants is None else blocked_lanes(tenants)
    return jobs if lanes is None else jobs.filter(lane_id__in=lanes)


def index_parts(status: str | None, tenants: tuple[str, ...] | None, job_type: str | None) -> list[IndexPart]:
    """Return parts of the jobs with a status of which each has an index in the order of pages.

    Without them a page would skip all newer jobs of other statuses, or sort all that have ended. The parts of completed
    jobs also select them.

    Args:
        status: The status of all jobs of the page, or None for any.
        tenants: Their tenants, or None for all.
        job_type: Their type, or None for any.

    Returns:
        The parts; none if the jobs of any status are read in the order of pages, or if there would be too many.
        Completed jobs are one part then.
    """
    otherwise = []
    if status == OrchestrationStatus.COMPLETED:
        parts, otherwise = [IndexPart(condition) for condition in COMPLETED], [IndexPart(reduce(or_, COMPLETED))]
    elif status == OrchestrationStatus.QUEUED:
        types = [job_type] if job_type else JOB_TYPES
        parts = [IndexPart(Q(state=JobState.QUEUED, job_type=name), KEY_OF_QUEUED) for name in types]
    else:
        return []
    if tenants is None or len(tenants) * len(parts) > MAX_PARTS:
        return otherwise
    return [IndexPart(Q(org_slug=tenant) & part.condition, part.key) for tenant in tenants for part in parts]


class RootPage(NamedTuple):
    """A page of jobs by their ids.

    Attributes:
        roots: The root ids, the newest job first.
        next_key: The key after which the next page begins, or None.
    """

    roots: list[str]
    next_key: int | None


def read_root_page(
    jobs: JobQuerySet, *, status: str | None, parts: Sequence[IndexPart] = (), size: int, after: int | None
) -> RootPage:
    """Return the root ids of a page, with one query unless the status of each candidate must be checked.

    Args:
        jobs: The candidates.
        status: The status of all jobs of the page, or None for any.
        parts: Parts of the candidates; see `index_parts`.
        size: The maximum number of jobs.
        after: The key of the last job of the page before, or None.
    """
    if status in _CHECKED:
        found, next_key = _matching(jobs, status, parts, size, after, backward=False)
        return RootPage([listed.job.root_job_ulid for listed in found], next_key)
    first = jobs.first_by_key(parts, size=size + 1, after=after)
    rows = list(first.values_list("pk", "root_job_ulid"))
    page = rows[:size]
    return RootPage([root for _, root in page], page[-1][0] if len(rows) > size else None)


class OrchestrationJobPages(NewestFirst):
    """Parameters, responses and encryption are those of `NewestFirst`."""

    def read_page(
        self, jobs: JobQuerySet, request: Request, *, status: str | None, parts: Sequence[IndexPart] = ()
    ) -> list[ListedJob]:
        """Return the jobs of the requested page.

        Args:
            jobs: The candidates.
            request: The request, with `limit` and `cursor`.
            status: The status of all jobs of the page, or None for any.
            parts: Parts of the candidates; see `index_parts`.
        """
        self.request, self.base_url = request, request.build_absolute_uri()
        size, cursor = self.get_page_size(request), self.decode_cursor(request)
        start = None if cursor is None or cursor.position is None else int(cursor.position)
        backward = cursor is not None and cursor.reverse
        found, resume = _matching(jobs, status, parts, size, start, backward=backward)
        if backward:
            found.reverse()
        first, last = (found[0].job.pk, found[-1].job.pk) if found else (None, None)
        origin = None if start is None else (start - 1, start + 1)  # the row at the start belongs to the other page
        if backward:
            self._previous_key = resume
            self._next_key = last or (origin and origin[1])
        else:
            self._next_key = resume
            self._previous_key = (first or (origin and origin[0])) if start is not None else None
        self.page = found
        return found

    def get_next_link(self) -> str | None:
        return None if self._next_key is None else self.encode_cursor(_cursor(self._next_key, reverse=False))

    def get_previous_link(self) -> str | None:
        return None if self._previous_key is None else self.encode_cursor(_cursor(self._previous_key, reverse=True))


def _cursor(key: int, *, reverse: bool) -> Cursor:
    return Cursor(offset=0, reverse=reverse, position=str(key))  # type: ignore[arg-type]  # the stubs say int


def _matching(
    jobs: JobQuerySet, status: str | None, parts: Sequence[IndexPart], size: int, start: int | None, *, backward: bool
) -> tuple[list[ListedJob], int | None]:
    """Return up to `size` jobs with the status, and the key after which the next page begins, if there may be one."""
    group = size + 1 if status is None else min(size + 1, GROUP)
    found: list[ListedJob] = []
    key, read = start, 0
    while True:
        first = jobs.first_by_key(parts, size=group, after=key, newest=not backward)
        rows: list[Any] = list(first.annotate(requested_at=KT("spec__requested_at")).defer("spec", "result"))
        standings = standings_of(rows)
        for job in rows:
            standing = standings[job.pk]
            if status is not None and standing.status != status:
                key = job.pk
                continue
            if len(found) == size:
                return found, found[-1].job.pk
            found.append(ListedJob(job, standing, job.requested_at))
            key = job.pk
        read += len(rows)
        if len(rows) < group:
            return found, None
        if read >= MAX_CANDIDATES:
            return found, key
        group = min(2 * group, GROUP)
