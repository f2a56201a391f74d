"""Kinds of tasks that exist during one test."""

import pytest

from orchestrator.housekeeping import registry


@pytest.fixture
def kinds(monkeypatch):
    """Only the kinds that the test declares."""
    found: dict[str, registry.TaskKind] = {}
    for module in ("orchestrator.housekeeping.registry", "orchestrator.housekeeping.queue"):
        monkeypatch.setattr(f"{module}.KINDS", found)
    monkeypatch.setattr("orchestrator.processes.housekeeping.KINDS", found)
    return found
