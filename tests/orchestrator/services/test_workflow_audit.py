"""The audit finds workflow runs that no operation leaves behind."""

import pytest
from django.db import connection

from orchestrator.audit.runner import run_audit
from orchestrator.services import batches
from orchestrator.workflows import workflow_end
from tests.factories import ALICE
from tests.workflow_runs import Runner, repository, reread, started

pytestmark = pytest.mark.django_db

GROUP = {"concurrency": "deploy"}


@pytest.fixture(autouse=True)
def audited():
    """These tests break things on purpose."""


@pytest.fixture
def runs():
    """By name: an ended run of a group, one that executes a job, a held one, and one that waits for an approval."""
    of, runner = repository(), Runner()
    ended = started({"a": None}, of, top=GROUP)
    assert runner.run_all() == ["a"]
    active = started({"a": None, "b": {"needs": "a"}}, of, top=GROUP)
    assert runner.claim_all() == ["a"]
    held = started({"a": None}, of, top=GROUP)
    unapproved = started({"a": None}, of, needs_approval=True)
    assert [reread(run).hold for run in (held, unapproved)] == ["concurrency", "approval"]
    return {"ended": ended, "active": active, "held": held, "unapproved": unapproved}


def findings() -> dict[str, str]:
    return {found.code: ", ".join(found.broken_for) for found in run_audit(chains=True)}


def test_runs_in_each_state_break_no_invariant(runs):
    assert findings() == {}
    batches.cancel_batch(batch_ulid=runs["active"].batch.batch_ulid, actor=ALICE, deadline_seconds=30)
    workflow_end.settle_pending_runs(limit=10)
    assert reread(runs["held"]).hold == "", "released while the job of the older run still stops"
    assert findings() == {}


ENDED = "conclusion = 'success', completed_at = now()"


@pytest.mark.parametrize(
    ("name", "table", "columns", "code"),
    [
        ("active", "workflow_runs", ENDED, "W1"),
        ("ended", "workflow_runs", "hold = 'approval'", "W1"),
        ("held", "runtime_jobs", "state = 'queued'", "W2"),
        ("unapproved", "runtime_jobs", "state = 'queued'", "W2"),
        ("active", "workflow_runs", "hold = 'concurrency'", "W2"),
        ("held", "workflow_runs", "hold = ''", "W3"),
    ],
)
def test_a_run_that_no_operation_leaves_behind_is_found(runs, name, table, columns, code):
    run = runs[name]
    with connection.cursor() as cursor:
        key = "id" if table == "workflow_runs" else "batch_id"
        cursor.execute("SET LOCAL orchestrator.maintenance = 'update'")
        cursor.execute(f"UPDATE {table} SET {columns} WHERE {key} = %s", [getattr(run, key)])
    named = f"run {run.pk}" if code != "W3" else f"runs {runs['active'].pk}, {run.pk}"
    assert {found: rows for found, rows in findings().items() if found.startswith("W")} == {code: named}
