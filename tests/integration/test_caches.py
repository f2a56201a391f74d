"""Caches of `steps` jobs, by real workers in a real sandbox: kept for the project, never for another one."""

from __future__ import annotations

from typing import Any

import pytest

from runtime_jobs.models import CacheEntry, Job, Project
from runtime_jobs.specs.steps import Cache
from tests.factories import ProjectFactory, submitted_steps
from tests.integration.conftest import Yard
from tests.integration.test_steps import log_of

pytestmark = pytest.mark.slow

CACHES = [{"type": "deps", "key": "lock-1", "paths": ["deps", "~/.store"], "read_only": False}]
READ = "cat deps/name ~/.store/name 2>/dev/null; [ -e deps/evil ] && echo poisoned; ls -A | grep cache; echo end"


def cached(project: Project, *lines: str, **columns: Any) -> Job:
    caches = tuple(Cache(**cache | {"paths": tuple(cache["paths"])}) for cache in CACHES)
    job = submitted_steps(project, steps=lines, caches=caches)
    Job.objects.filter(pk=job.pk).update(least_isolation="restricted", **columns)
    return job


def output_of(yard: Yard, job: Job) -> bytes:
    done = yard.ended(job)
    assert done.public_status == "succeeded", (done.failure_message, log_of(job), yard.story(job))
    return b"".join(chunk for _, chunk in log_of(job))


@pytest.mark.parametrize("engine", ["bubblewrap", "restricted"])
def test_the_next_job_restores_the_cache_and_another_project_never(yard: Yard, engine: str) -> None:
    other = ProjectFactory(organization=yard.project.organization, slug="other", least_isolation="none")
    for name in ("one", "two"):  # two workers: nothing is kept on a machine
        yard.start(yard.enrol(name), engine=engine)

    made = cached(yard.project, "mkdir deps ~/.store; echo first > deps/name; echo home > ~/.store/name")
    assert output_of(yard, made) == b""
    assert CacheEntry.objects.filter(completed_at__isnull=False).count() == 2, yard.story(made)
    found = cached(yard.project, READ, "echo second > deps/name")
    assert output_of(yard, found) == b"first\nhome\nend\n"
    assert output_of(yard, cached(other, READ)) == b"end\n"
    assert output_of(yard, cached(yard.project, READ)) == b"first\nhome\nend\n", "an entry never changes"
    results = [Job.objects.get(pk=job.pk).result["caches"] for job in (made, found)]
    assert results == [[{"type": "deps", "key": "lock-1", "hit": hit, "read_only": False}] for hit in (False, True)]


def test_a_pull_request_does_not_poison_the_cache_of_the_project(yard: Yard) -> None:
    pull_request = {"trigger_kind": "pull_request", "git_ref": "refs/pull/7/merge", "pull_request_number": 7}
    yard.start(yard.enrol("one"), engine="bubblewrap")
    evil = cached(yard.project, "mkdir -p deps; echo evil > deps/evil", **pull_request)
    assert output_of(yard, evil) == b""
    assert set(CacheEntry.objects.values_list("scope", flat=True)) == {"refs/pull/7/merge#7"}
    assert output_of(yard, cached(yard.project, READ)) == b"end\n"
    same = cached(yard.project, READ, **pull_request)
    assert output_of(yard, same) == b"poisoned\nend\n", "its own ref has it"
    stranger = cached(yard.project, READ, **pull_request | {"git_ref": "refs/pull/8/merge", "pull_request_number": 8})
    assert output_of(yard, stranger) == b"end\n"


def test_a_failed_job_saves_no_cache(yard: Yard) -> None:
    yard.start(yard.enrol("one"), engine="bubblewrap")
    failed = cached(yard.project, "mkdir deps; exit 1")
    assert yard.ended(failed).public_status == "failed"
    assert not CacheEntry.objects.exists()
