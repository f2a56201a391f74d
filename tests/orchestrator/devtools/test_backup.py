"""A dump of one installation, restored into another one, has the same rows and passes the audit."""

import stat
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from config.postgres import embedded
from orchestrator.management.commands.backup import Command as BackupCommand
from tests.orchestrator.devtools.conftest import Installation

pytestmark = pytest.mark.timeout(600)  # the first test of a scene waits until it is there


@pytest.fixture(scope="module")
def empty() -> Iterator[Installation]:
    """An installation with an empty database. Its PostgreSQL runs until the last test, beside the commands."""
    made = Installation()
    embedded.ensure(made.state)
    yield made
    embedded.release(made.state)
    made.end()


def count_rows(state: Path) -> tuple[int, ...]:
    with psycopg.connect(embedded.url(state)) as connection:
        query = "SELECT (SELECT count(*) FROM runtime_jobs), (SELECT count(*) FROM runtime_job_events)"
        return connection.execute(query).fetchone()


def test_a_file_that_is_no_dump_is_refused_in_one_line(empty):
    refused = empty.manage("restore", __file__)
    assert refused.wait() == 1
    assert len(refused.errors) == 1
    assert "pg_restore: error" in refused.errors[0]


def test_a_dump_that_takes_longer_than_permitted_ends_in_one_line_and_leaves_no_file(empty, tmp_path):
    launched = empty.manage("backup", str(tmp_path / "all.dump"), SNAPSHOT_SECONDS="0.001")
    assert launched.wait() == 1
    assert "pg_dump took longer than 0.001 seconds (SNAPSHOT_SECONDS)" in launched.errors[0]
    assert (len(launched.errors), list(tmp_path.iterdir())) == (1, [])


def test_a_dump_of_a_database_with_jobs_can_be_restored(demos, empty):
    """The jobs are those of two demos."""
    source = demos.installation
    file = empty.state / "a dump"
    embedded.ensure(source.state)
    try:
        backup = source.manage("backup", str(file))
        assert backup.wait() == 0, backup.everything()
        expected = count_rows(source.state)
    finally:
        embedded.release(source.state)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "secret_key" in backup.everything()
    assert min(expected) > 1

    restored = empty.manage("restore", str(file))
    assert restored.wait() == 0, restored.everything()
    assert count_rows(empty.state) == expected
    audit = empty.manage("audit", "--chains")
    assert audit.wait() == 0, audit.everything()

    again = empty.manage("restore", str(file))
    assert again.wait() == 1
    assert "already: restore into an empty one" in again.errors[-1]
    assert len(again.errors) == 1


def test_an_existing_file_is_kept(capsys):
    before = Path(__file__).read_bytes()
    with pytest.raises(SystemExit) as refused:
        BackupCommand().run_from_argv(["manage.py", "backup", __file__])
    assert refused.value.code == 1
    assert capsys.readouterr().err == f"CommandError: {__file__} exists: name another file, or remove it first.\n"
    assert Path(__file__).read_bytes() == before
