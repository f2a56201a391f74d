"""The scene `evidence` of `make bench`: its jobs are true ones, and its lines are those of the bundle. Nothing is timed."""

import io
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from benchmarks import core_cost, ended_jobs, evidence
from orchestrator.audit.runner import run_audit
from orchestrator.evidence.bundle_writing import BundleScope, write_bundle
from runtime_jobs.models import Job, JobEvent
from tests.factories import PoolFactory

SCOPE = BundleScope("acme", datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))


@pytest.fixture
def events(transactional_db, settings, tmp_path) -> int:
    """Create three jobs, two of which are copies. Returns the number of their events."""
    settings.SIGNING_KEY_DIR = str(tmp_path / "keys")
    settings.CHECKPOINT_DIR = str(tmp_path / "checkpoints")
    PoolFactory(slug="evidence")
    return ended_jobs.ended_jobs("acme", "evidence", 13)


def test_copied_jobs_have_histories_that_the_audit_accepts(events):
    assert JobEvent.objects.count() == events == 18
    assert Job.objects.filter(state="succeeded").count() == 3
    assert len(set(JobEvent.objects.values_list("hash", flat=True))) == events
    assert run_audit(chains=True) == []


def test_the_lines_that_are_only_hashed_are_those_that_are_verified(events):
    file = io.BytesIO()
    written = write_bundle(file, SCOPE, max_seconds=60)
    lines = evidence.lines_of(file.getvalue())
    assert len(lines) == sum(written.lines.values()) == events + 3
    assert evidence._verified(file.getvalue())["lines"] == len(lines)


def test_a_baseline_that_is_no_folder_is_a_commit_of_the_repository(monkeypatch, tmp_path):
    monkeypatch.setenv("BASELINE", "no-folder-and-no-commit")
    found = core_cost.measure(SimpleNamespace(state=tmp_path), None, {})["core_cost"]
    assert found == {"missing": "there is no folder, and the repository has no commit no-folder-and-no-commit"}
