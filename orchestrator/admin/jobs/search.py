"""The search box of the list of jobs: id, commit, run, repository. Each lookup uses an index or has a bound."""

import re
from typing import Any

from django.db.models import Max, Q, QuerySet

from runtime_jobs.models import Job, Organization

MAX_SCANNED_JOBS = 200_000  # newest jobs in which a repository is searched: it has no index of its own

_JOB = re.compile(r"rtj_[0-9a-hjkmnp-tv-z]{1,26}")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_RUN = re.compile(r"run_[0-9A-Za-z_-]{1,60}")
_REPOSITORY = re.compile(r"(?:https://[^/\s]+/)?([\w.-]{1,100})/([\w.-]{1,100}?)(?:\.git)?/?", re.ASCII)
_NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)

HELP = "Job id, commit, run id or owner/repository"


def find(jobs: QuerySet[Job], text: str) -> QuerySet[Job]:
    """Narrow `jobs` to those that the text names; to none if the text has no known form."""
    text = text.strip()
    if _JOB.fullmatch(text):
        return jobs.filter(job_ulid__gte=text, job_ulid__lte=text.ljust(30, "z"))
    if _COMMIT.fullmatch(text):
        return jobs.filter(**_commit_range(text))
    if _RUN.fullmatch(text):
        return jobs.filter(ingest_run_id=text)
    if repository := _REPOSITORY.fullmatch(text):
        return _newest(jobs).filter(repo_owner=repository[1], repo_name=repository[2])
    if _NAME.fullmatch(text):
        return _newest(jobs).filter(Q(repo_name=text) | Q(repo_owner=text))
    return jobs.none()


def _commit_range(prefix: str) -> dict[str, Any]:
    """Select commits by range: LIKE needs an index of its own in most collations.

    The index begins with the organization, so the organizations are named too: one lookup for each.
    """
    organizations = Organization.objects.values("slug")
    return {"org_slug__in": organizations, "git_commit__gte": prefix, "git_commit__lt": f"{prefix}g"}


def _newest(jobs: QuerySet[Job]) -> QuerySet[Job]:
    last = Job.objects.aggregate(last=Max("id"))["last"] or 0
    return jobs.filter(id__gt=last - MAX_SCANNED_JOBS)
