"""Settles workflow runs whose processes died after the last job had ended."""

from datetime import timedelta

from orchestrator.housekeeping.registry import task
from orchestrator.workflows.workflow_end import settle_pending_runs

SETTLEMENT_TASK = "workflow_settlement"
PERIOD = timedelta(seconds=10)
PAGE = 500


@task(SETTLEMENT_TASK, every=lambda: PERIOD, is_standing=True)
def settle_runs(_subject: str) -> None:
    """Record the ends of runs, and release waiting ones."""
    settle_pending_runs(limit=PAGE)
