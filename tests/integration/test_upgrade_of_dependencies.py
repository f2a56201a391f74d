"""An upgrade from commit 042d1ea with a dependent of a job in each state: no dependency changes its meaning."""

import json
from pathlib import Path

import psycopg
import pytest

from config.paths import BASE_DIR
from runtime_jobs.states import FINAL_STATES, JobState
from tests.integration.test_upgrade import environment, extracted, run

__all__ = ["environment"]  # a fixture
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FORMER = "042d1ea"
PREAMBLE = """
import json, django
django.setup()
from datetime import timedelta
from leases.models import Lease
from orchestrator import services
from orchestrator.services import dependency_propagation
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason
from tests.factories import (
    ALICE, LATE_POLICY, OPERATOR, ProjectFactory, WorkerFactory, claimed, submitted, submitted_steps,
)

def call(name, job, **members):
    lease = Lease.objects.filter(job=job).select_related("worker").latest("pk")
    return getattr(services, name)(lease_ulid=lease.lease_ulid, worker=lease.worker, **members)
"""
# One job for each state, and a job that depends on it. Two more have ended, and nothing was propagated yet.
SEED = f"""{PREAMBLE}
project = ProjectFactory()
made = {{}}

def begun(name, phase=None, policy=None, acknowledge=False):
    job = submitted_steps(project, policy=policy)
    made[name] = [job.job_ulid, submitted(project, depends_on=(job,)).job_ulid]
    claimed(job_types=("steps",), acknowledge=acknowledge)
    if phase:
        call("report", job, phase=phase)
    return Job.objects.get(pk=job.pk)

for phase in ("starting", "checking_out", "executing", "uploading"):
    begun(phase, None if phase == "starting" else phase)
begun("leased", acknowledge=True)
lost = begun("lost", "executing", LATE_POLICY)
services.revoke(job_ulid=lost.job_ulid, actor=OPERATOR, reason="x")
call("complete", begun("processing", "executing", LATE_POLICY), exit_code=0)
for prefix in ("", "unpropagated_"):
    dependency_propagation.INLINE_LIMIT = 0 if prefix else 8
    call("complete", begun(prefix + "succeeded"), exit_code=0)
    call("fail", begun(prefix + "failed"), reason=FailureReason.COMMAND_FAILED, exit_code=1, message="")
    services.cancel(job_ulid=begun(prefix + "canceled", acknowledge=True).job_ulid, actor=ALICE, deadline_seconds=0)
    for job in Job.objects.filter(job_ulid=made[prefix + "canceled"][0]).exclude(state="canceled"):
        call("acknowledge_cancel", job)
queued = submitted_steps(project)
made["queued"] = [queued.job_ulid, submitted(project, depends_on=(queued,)).job_ulid]
made["blocked"] = [made["queued"][1], submitted(project, depends_on=(Job.objects.get(job_ulid=made["queued"][1]),)).job_ulid]
print(json.dumps(made))
"""
# A process of the former release adds a dependency to the new schema, and ends the job.
FORMER_ON_NEW = f"""{PREAMBLE}
from runtime_jobs.models import Project
project = Project.objects.get()
job = submitted_steps(project)
dependent = submitted(project, depends_on=(job,))
services.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=0)
print(json.dumps([job.job_ulid, dependent.job_ulid]))
"""
# The present release ends what is open: the jobs in SUCCEED with a success, the others with a failure.
FINISH = f"""{PREAMBLE}
import sys
made = json.loads(sys.argv[1])
Lease.objects.open().update(expires_at=database_now() + timedelta(hours=1))  # however long the migrations took
dependency_propagation.propagate_pending(limit=100)
for name in ("starting", "executing"):
    call("complete", Job.objects.get(job_ulid=made[name][0]), exit_code=0)
for name in ("checking_out", "uploading"):
    call("fail", Job.objects.get(job_ulid=made[name][0]), reason=FailureReason.COMMAND_FAILED, exit_code=1, message="")
leased = Job.objects.get(job_ulid=made["leased"][0])
call("acknowledge", leased)
call("complete", leased, exit_code=0)
lost = Job.objects.get(job_ulid=made["lost"][0])
had = Lease.objects.filter(job=lost).select_related("worker").latest("pk")
services.complete_late(job_ulid=lost.job_ulid, worker=had.worker, exit_code=0)
for name in ("lost", "processing"):
    services.settle(job_ulid=made[name][0])
services.cancel(job_ulid=made["queued"][0], actor=ALICE, deadline_seconds=0)
dependency_propagation.propagate_pending(limit=100)
"""


def rows(environment: dict[str, str], query: str) -> list[tuple[str, ...]]:
    with psycopg.connect(environment["DATABASE_URL"]) as connection:
        return connection.execute(query).fetchall()


def states(environment: dict[str, str]) -> dict[str, tuple[str, str | None]]:
    query = "SELECT job_ulid, state, cancel_reason FROM runtime_jobs"
    return {job: (state, reason) for job, state, reason in rows(environment, query)}


def audited(environment: dict[str, str], tree: Path) -> bool:
    return "invariants hold" in run(tree, environment, "manage.py", "audit", "--chains")


@pytest.fixture(scope="module")
def former_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the former commit, from the history of this clone."""
    return extracted(FORMER, tmp_path_factory.mktemp("former"))


@pytest.mark.django_db
def test_dependencies_of_the_former_commit_keep_their_meaning(former_tree, environment):
    run(former_tree, environment, "manage.py", "migrate", "--verbosity", "0")
    made = json.loads(run(former_tree, environment, "-c", SEED).splitlines()[-1])
    before = states(environment)
    assert {before[job][0] for job, _ in made.values()} == set(JobState)
    dependents = {name: before[dependent] for name, (_, dependent) in made.items()}
    open_names = set(made) - {"succeeded", "failed", "canceled"}
    assert {dependents.pop(name) for name in open_names} == {("blocked", None)}
    assert dependents == {
        "succeeded": ("queued", None),
        "failed": ("canceled", "dependency_failed"),
        "canceled": ("canceled", "dependency_failed"),
    }
    edges = "SELECT job_ulid, on_job_ulid FROM runtime_job_dependencies ORDER BY id"
    stored = rows(environment, edges)
    assert audited(environment, former_tree)

    run(BASE_DIR, environment, "manage.py", "migrate", "--verbosity", "0")
    assert states(environment) == before
    assert rows(environment, edges) == stored
    assert audited(environment, BASE_DIR)
    job, dependent = json.loads(run(former_tree, environment, "-c", FORMER_ON_NEW).splitlines()[-1])
    assert states(environment)[dependent] == ("canceled", "dependency_failed")
    added = f"SELECT needs_success FROM runtime_job_dependencies WHERE on_job_ulid = '{job}'"
    assert rows(environment, added) == [(True,)]
    assert rows(environment, "SELECT count(*) FROM runtime_job_dependencies WHERE NOT needs_success") == [(0,)]

    run(BASE_DIR, environment, "-c", FINISH, json.dumps(made))
    after = states(environment)
    ended = {name: after[job][0] for name, (job, _) in made.items()}
    assert set(ended.values()) <= set(FINAL_STATES)
    for name, (_, dependent) in made.items():
        expected = ("queued", None) if ended[name] == JobState.SUCCEEDED else ("canceled", "dependency_failed")
        assert after[dependent] == expected, name
    assert set(ended.values()) == set(FINAL_STATES)
    assert audited(environment, BASE_DIR)
