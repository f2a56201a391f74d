"""Tests that the functions of the suite find what `run_audit` finds, and see every change of a row."""

import pytest

from orchestrator.audit.runner import run_audit
from runtime_jobs.models import Job, Plan
from tests.db_snapshot import nothing_lost
from tests.factories import WorkerFactory, claimed, submitted
from tests.suite_functions import audit_findings, images
from workers.models import Worker

pytestmark = pytest.mark.django_db


def test_a_broken_invariant_is_found_by_both():
    submitted()
    lease = claimed().lease
    assert audit_findings(chains=True) == [] == run_audit(chains=True)
    Job.objects.filter(pk=lease.job.pk).update(state="queued", fence=7, event_seq=9)
    found = audit_findings()
    assert {finding.split(":")[0] for finding in found} >= {"I2", "I4", "I6", "I8"}
    assert found == [str(finding) for finding in run_audit()]


def test_a_broken_chain_is_found():
    submitted()
    Job.objects.update(command_json=["another"])
    assert [finding.split(":")[0] for finding in audit_findings(chains=True)] == ["I8d"]


def test_each_change_of_a_row_is_seen():
    before = images()
    plan = Plan.objects.create(name="another")
    assert {table for table, rows in images().items() if rows != before[table]} == {Plan._meta.db_table}
    with pytest.raises(AssertionError, match=Plan._meta.db_table), nothing_lost():
        Plan.objects.filter(pk=plan.pk).update(priority=7)
    with pytest.raises(AssertionError, match=Plan._meta.db_table), nothing_lost():
        plan.delete()


def test_a_worker_may_be_seen_meanwhile():
    worker = WorkerFactory()
    with nothing_lost():
        Worker.objects.filter(pk=worker.pk).update(last_seen_at=worker.created_at)
