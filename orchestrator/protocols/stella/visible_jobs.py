"""Finds the jobs that a caller may see. A job is named by its first attempt, and shows its newest one."""

import re
from typing import Final
from uuid import UUID

from django.db.models import Exists, OuterRef

from orchestrator.core.principals import ClientPrincipal
from runtime_jobs.errors import NotFound
from runtime_jobs.identifiers import public_id_of
from runtime_jobs.models import Job
from runtime_jobs.models.jobs import JobQuerySet

UUID_PATTERN: Final = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
MISSING: Final = "There is no job with this id, or you may not see it."
_UUID = re.compile(UUID_PATTERN)


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID in the form with hyphens."""
    return _UUID.fullmatch(text) is not None


def job_ulid_of(uuid: str) -> str:
    """Return the public id of the job with this UUID."""
    return public_id_of("rtj", UUID(uuid))


def newest_attempts(tenants: tuple[str, ...] | None) -> JobQuerySet:
    """Return the jobs of these tenants, or of all for None: of each job the attempt that no other one follows."""
    jobs = Job.objects.all() if tenants is None else Job.objects.all().of_organizations(list(tenants))
    newer = Job.objects.filter(retry_of_job_ulid=OuterRef("job_ulid"))
    return jobs.filter(~Exists(newer))


def attempts_of(caller: ClientPrincipal, uuid: str) -> list[Job]:
    """Return all attempts of a job, the oldest first.

    Raises:
        NotFound: The job does not exist, the id is that of a later attempt, or the caller may not see the job.
    """
    attempts = list(Job.objects.filter(root_job_ulid=job_ulid_of(uuid)).order_by("attempt"))
    if not attempts or not caller.sees(attempts[0].org_slug):
        raise NotFound(MISSING)
    return attempts


def newest_attempt(caller: ClientPrincipal, uuid: str) -> Job:
    """Return the newest attempt of a job.

    Raises:
        NotFound: As `attempts_of`.
    """
    return attempts_of(caller, uuid)[-1]
