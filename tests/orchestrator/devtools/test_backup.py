"""A dump of one installation, restored into another one, has the same rows and passes the audit."""

import stat
from pathlib import Path

import pytest

from tests.orchestrator.devtools.conftest import Installation


@pytest.fixture
def other():
    made = Installation()
    yield made
    made.end()


def count_jobs(installation: Installation) -> str:
    script = "from runtime_jobs.models import Job, JobEvent; print(Job.objects.count(), JobEvent.objects.count())"
    found = installation.manage("shell", "--verbosity", "0", "-c", script)
    assert found.wait() == 0, found.everything()
    return found.lines[-1]


def test_a_dump_of_a_database_with_jobs_can_be_restored(migrated, other):
    for kept in (migrated, other):
        (kept.state / "throwaway").unlink()  # the database outlives each command
    demo = migrated.manage("demo")
    assert demo.wait() == 0, demo.everything()
    file = migrated.state / "a dump"
    backup = migrated.manage("backup", str(file))
    assert backup.wait() == 0, backup.everything()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "secret_key" in backup.everything()

    restored = other.manage("restore", str(file))
    assert restored.wait() == 0, restored.everything()
    assert count_jobs(other) == count_jobs(migrated)
    audit = other.manage("audit", "--chains")
    assert audit.wait() == 0, audit.everything()

    again = other.manage("restore", str(file))
    assert again.wait() == 1
    assert "already: restore into an empty one" in again.errors[-1]
    assert len(again.errors) == 1


def test_an_existing_file_is_kept(installation):
    before = Path(__file__).read_bytes()
    refused = installation.manage("backup", __file__)
    assert refused.wait() == 1
    assert refused.errors == [f"CommandError: {__file__} exists: name another file, or remove it first."]
    assert Path(__file__).read_bytes() == before


def test_a_file_that_is_no_dump_is_refused_in_one_line(installation):
    refused = installation.manage("restore", __file__)
    assert refused.wait() == 1
    assert len(refused.errors) == 1
    assert "pg_restore: error" in refused.errors[0]
