from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.agent.conftest import LEASE_ID, claim_body
from workers.agent.http import wire
from workers.agent.result_spool import ResultSpool, SpoolEntry


def an_entry(
    job_id: str = "rtj_01jjob", payload: bytes = b'{"a":\n1}', server: str = "http://127.0.0.1:1"
) -> SpoolEntry:
    return SpoolEntry(server, wire.lease(claim_body(job_id=job_id)), {"exit_code": 0}, payload)


def test_what_was_put_is_found_by_the_next_life_byte_for_byte(tmp_path: Path) -> None:
    entry = an_entry(payload=bytes(range(256)) + b"\n\n")
    ResultSpool(tmp_path).put(entry)
    assert list(ResultSpool(tmp_path).pending()) == [entry]


def test_what_was_removed_is_gone(tmp_path: Path) -> None:
    spool = ResultSpool(tmp_path)
    spool.put(an_entry())
    spool.remove(an_entry())
    spool.remove(an_entry())
    assert list(tmp_path.iterdir()) == []


def test_a_lease_is_found_by_the_next_life_until_it_is_forgotten(tmp_path: Path) -> None:
    entry, spool = an_entry(), ResultSpool(tmp_path)
    spool.keep_lease(entry.server, entry.lease)
    (path,) = tmp_path.iterdir()
    assert (path.name, stat.S_IMODE(path.stat().st_mode)) == ("rtj_01jjob.1.lease", 0o600)
    assert list(ResultSpool(tmp_path).abandoned_leases(entry.server)) == [entry.lease]
    assert list(ResultSpool(tmp_path).abandoned_leases("http://127.0.0.1:2")) == [], "another server's"
    spool.put(entry)
    assert list(spool.abandoned_leases(entry.server)) == [], "its result says how it ended"
    spool.remove(entry)
    assert list(tmp_path.iterdir()) == []


def test_the_permission_to_pull_an_image_is_on_no_disk(tmp_path: Path) -> None:
    body, spool = claim_body(job_type="oci", source=None), ResultSpool(tmp_path)
    body["job"]["oci"] = {
        "config": {"project": "web", "digest": f"sha256:{'0' * 64}", "timeout": 60},
        "machine": {"cpu": 1, "memory": 1, "disk": 1, "network": False},
        "pull_token": "eyJ-secret",
    }
    lease = wire.lease(body)
    assert lease.job.oci.pull_token == "eyJ-secret"
    entry = SpoolEntry("http://127.0.0.1:1", lease, {}, b"")
    spool.keep_lease(entry.server, lease)
    (left,) = spool.abandoned_leases(entry.server)
    spool.put(entry)
    (found,) = spool.pending()
    assert left.lease_id == found.lease.lease_id == lease.lease_id
    assert [b"eyJ-secret" in path.read_bytes() for path in tmp_path.iterdir()] == [False, False]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 1, "server": "x", "claim": {}}'])
def test_a_lease_that_cannot_be_read_is_left_to_expire(tmp_path: Path, text: str) -> None:
    (tmp_path / "rtj_01jjob.1.lease").write_text(text)
    assert list(ResultSpool(tmp_path).abandoned_leases("x")) == []
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_no_lease_and_costs_no_job(tmp_path: Path) -> None:
    ResultSpool(tmp_path / "gone").keep_lease("http://127.0.0.1:1", an_entry().lease)


def test_results_are_private_and_show_no_lease_in_their_names(tmp_path: Path) -> None:
    ResultSpool(tmp_path).put(an_entry())
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.name == "rtj_01jjob.1.result"
    assert LEASE_ID not in repr(an_entry())


def test_a_result_that_was_being_written_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "rtj_01jjob.1.draft").write_bytes(b"half")
    assert list(ResultSpool(tmp_path).pending()) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"{}\n", lambda data: b"\xff" + data]
)
def test_a_damaged_result_is_put_aside_and_the_others_are_found(tmp_path: Path, damage: object) -> None:
    spool = ResultSpool(tmp_path)
    spool.put(an_entry("rtj_bad"))
    spool.put(an_entry("rtj_good"))
    path = tmp_path / "rtj_bad.1.result"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator] # one of the functions above
    assert [entry.lease.job.job_id for entry in spool.pending()] == ["rtj_good"]
    assert (tmp_path / "rtj_bad.1.unreadable").exists()
    assert [entry.lease.job.job_id for entry in spool.pending()] == ["rtj_good"]


KILLED = """
import os, signal, sys
from pathlib import Path
from workers.agent import result_spool
from tests.workers.agent.test_spool import an_entry
if sys.argv[2] == "before the rename":
    def replace(*_): os.kill(os.getpid(), signal.SIGKILL)
    Path.replace = replace
result_spool.ResultSpool(Path(sys.argv[1])).put(an_entry())
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("moment", "found"), [("before the rename", 0), ("after put", 1)])
def test_a_kill_leaves_the_whole_result_or_none(tmp_path: Path, moment: str, found: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), moment], check=False)
    assert done.returncode == -9
    assert len(list(ResultSpool(tmp_path).pending())) == found
