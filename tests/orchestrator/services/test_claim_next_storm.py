"""Completions that claim, beside all that locks lanes and queues. `PROOF_ROUNDS` makes it longer, and prints the deadlocks."""

import functools
import os
import random
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from orchestrator.audit.runner import run_audit
from orchestrator.core import unit_of_work
from orchestrator.services import claim_next, claiming, job_end
from orchestrator.services.claim_next import ClaimRequest
from orchestrator.services.job_end import CompleteMessage
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason, JobState
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, limited, offer, submitted

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("PROOF_ROUNDS", "3"))
THREADS = 4
JOBS = 6  # of each project in a round


def test_completions_that_claim_lose_no_job_and_no_slot(monkeypatch, capsys):
    """Organizations are full most of the time, so completions unblock lanes and queues while claims block them."""
    repeated: Counter[str] = Counter()
    is_retryable = unit_of_work.is_retryable

    def counted(error, *more):
        repeated[getattr(error.__cause__, "sqlstate", None)] += 1
        return is_retryable(error, *more)

    for module in (unit_of_work, claiming):
        monkeypatch.setattr(module, "is_retryable", counted)
    projects = [ProjectFactory(organization=OrganizationFactory()) for _ in range(3)]
    for project in projects:
        limited(project.organization.slug, max_active=2)
    workers = [WorkerFactory(capacity=2) for _ in range(THREADS)]
    ends: Counter[str] = Counter()
    start = threading.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(ROUNDS):
            act = functools.partial(work, projects=projects, start=start, ends=ends, number=number)
            list(pool.map(act, workers))
        list(pool.map(lambda _: (start.wait(60), connection.close()), workers))
    finish(workers[0])
    assert Job.objects.exclude(state=JobState.SUCCEEDED).count() == ends["failed"]
    assert ends["next"] > 0
    assert [str(finding) for finding in run_audit()] == []
    if ROUNDS >= 100:
        with capsys.disabled():
            sys.stderr.write(f"\n{ROUNDS} rounds: ends {dict(ends)}, repeated {dict(repeated)}")


def work(worker, projects, start, ends, number):
    """Submit, claim, and end what was claimed: most by a completion that claims, until there is nothing to claim."""
    dice = random.Random(f"{worker.pk} {number}")
    start.wait(60)
    for _ in range(JOBS):
        submitted(dice.choice(projects), priority=dice.choice([10, 20]))
    lease = next_lease(worker)
    while lease is not None:
        message = CompleteMessage(f"run_{lease.pk}")
        if dice.random() < 0.1:
            job_end.fail(lease_ulid=lease.lease_ulid, worker=worker, reason=FailureReason.COMMAND_NOT_FOUND)
            ends["failed"] += 1
            lease = next_lease(worker)
            continue
        finished = claim_next.complete_and_claim(
            lease_ulid=lease.lease_ulid, worker=worker, message=message, claim=ClaimRequest(offer(worker))
        )
        following = finished.next_claim
        ends["next" if following else "none"] += 1
        lease = following and following.lease


def next_lease(worker):
    claim = claiming.claim(worker=worker, offer=offer(worker))
    return claim and claim.lease


def finish(worker):
    """Complete what is left when the limits of all organizations were full."""
    while (lease := next_lease(worker)) is not None:
        job_end.complete(lease_ulid=lease.lease_ulid, worker=worker, ingest_run_id=f"run_{lease.pk}")
