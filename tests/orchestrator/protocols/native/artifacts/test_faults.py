"""Uploads when something fails: a real disk that is full, and a server that is killed between object and row."""

import hashlib
import os
import secrets
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import requests
from django.db import connection
from django.utils import timezone

from orchestrator.artifacts.tasks import ABANDONED_AFTER, delete_due_objects
from orchestrator.audit.runner import audit_objects, run_audit
from runtime_jobs.models import StorageUsage, StoredArtifact
from tests.live_server import eventually, patient, serving
from tests.orchestrator.artifacts.conftest import FOLDER, use
from tests.orchestrator.protocols.native.artifacts.test_real_server import MIB, Holder, start

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
__all__ = ["start"]
NAMESPACE = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
PAUSE = 4711  # an advisory lock of these tests


def disk_of(folder: Path, size: int) -> tuple[str, ...]:
    """A command that executes another one with a small file system at a folder, in a mount namespace of its own."""
    mount = f'mount -t tmpfs -o size={size} tmpfs "$1" && shift && exec "$@"'
    return (*NAMESPACE, "sh", "-c", mount, "sh", str(folder))


def files_of(server, folder: Path) -> list[Path]:
    """The files on the disk of a server."""
    inside = Path(f"/proc/{server.process.pid}/root{folder}")
    return [path for path in inside.rglob("*") if path.is_file()]


def test_a_full_disk_is_refused_by_name_and_leaves_nothing(tmp_path, database_url):
    folder = tmp_path / "artifacts"
    folder.mkdir()
    small = disk_of(folder, 16 * MIB)
    if subprocess.run([*small, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine allows no mount namespaces")
    variables = {"DATABASE_URL": database_url, "PUBLIC_URL": "http://{address}", "ARTIFACTS_DIR": str(folder)}
    with serving(tmp_path, prefix=small, **variables) as server:
        holder, kept, large = Holder(server), secrets.token_bytes(10 * MIB), bytes(8 * MIB)

        assert requests.put(holder.begin("kept", len(kept))["upload_url"], data=kept, timeout=120).status_code == 200
        url = holder.begin("large", len(large))["upload_url"]
        refused = requests.put(url, data=large, timeout=120)
        assert (refused.status_code, refused.json()["code"]) == (507, "storage_full")
        eventually(lambda: len(files_of(server, folder)) == 1)
        assert StoredArtifact.objects.get(name="large").completed_at is None
        assert set(holder.visible()) == {"kept"}
        assert holder.download("kept").content == kept
        files_of(server, folder)[0].unlink()  # room again, and the address is still valid
        assert requests.put(url, data=large, timeout=120).status_code == 200
        assert holder.download("large").content == large
    assert list(folder.iterdir()) == [], "the disk was the server's alone"


def test_a_full_disk_under_the_pieces_of_an_artifact_loses_none(tmp_path, database_url):
    folder = tmp_path / "artifacts"
    folder.mkdir()
    small = disk_of(folder, 16 * MIB)
    if subprocess.run([*small, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine allows no mount namespaces")
    variables = {"DATABASE_URL": database_url, "PUBLIC_URL": "http://{address}", "ARTIFACTS_DIR": str(folder)}
    with serving(tmp_path, prefix=small, **variables) as server:
        holder, kept, whole = Holder(server), bytes(6 * MIB), secrets.token_bytes(6 * MIB)
        assert requests.put(holder.begin("kept", len(kept))["upload_url"], data=kept, timeout=120).status_code == 200
        (file,) = files_of(server, folder)
        path = (
            f"{server.url}/v1/runtime/leases/{holder.lease}/artifacts/{holder.begin('whole', 6 * MIB)['artifact_id']}"
        )
        headers = holder.headers | {"Content-Type": "application/octet-stream"}
        for offset in range(0, 6 * MIB, MIB):
            piece = whole[offset : offset + MIB]
            sent = requests.put(f"{path}/pieces/{offset}", data=piece, headers=headers, timeout=120)
            assert sent.status_code == 200, sent.text
        digest = {"sha256": hashlib.sha256(whole).hexdigest()}
        refused = requests.post(f"{path}/close", json=digest, headers=holder.headers, timeout=120)
        assert (refused.status_code, refused.json()["code"]) == (507, "storage_full")
        assert (len(files_of(server, folder)), set(holder.visible())) == (7, {"kept"})
        assert StoredArtifact.objects.get(name="whole").completed_at is None
        file.unlink()  # room again
        assert requests.post(f"{path}/close", json=digest, headers=holder.headers, timeout=120).status_code == 200
        assert holder.download("whole").content == whole


@pytest.fixture
def paused_commit(transactional_db):
    """Holds each transaction that makes an artifact complete, until the test releases it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION test_pause() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN PERFORM pg_advisory_xact_lock({PAUSE}); RETURN NEW; END $$;"
            "CREATE TRIGGER test_pause BEFORE UPDATE OF completed_at ON runtime_stored_artifacts "
            "FOR EACH ROW EXECUTE FUNCTION test_pause();"
            f"SELECT pg_advisory_lock({PAUSE})"
        )

    def release():
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT pg_advisory_unlock({PAUSE})")
            # Waits for the transaction of the killed server, which PostgreSQL ends when it misses its client.
            cursor.execute("DROP FUNCTION IF EXISTS test_pause CASCADE")

    yield release
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock_all()")
        cursor.execute("DROP FUNCTION IF EXISTS test_pause CASCADE")


def killed_between_object_and_row(start, database_url, tmp_path, paused_commit, content):
    """Kill the server when the object is in its place and the row is not complete. Return the holder and the address."""
    with start(DATABASE_URL=patient(database_url)) as server:
        holder = Holder(server)
        url = holder.begin("a", len(content))["upload_url"]
        target = tmp_path / "artifacts" / StoredArtifact.objects.get().object_key
        with ThreadPoolExecutor(1) as thread:
            sent = thread.submit(requests.put, url, data=content, timeout=120)
            eventually(target.exists)
            server.process.kill()
            server.process.wait()
            with pytest.raises(requests.ConnectionError):
                sent.result(120)
    paused_commit()
    assert target.read_bytes() == content
    assert StoredArtifact.objects.get().completed_at is None
    return holder, url


def test_after_a_kill_between_object_and_row_the_upload_can_be_repeated(start, database_url, tmp_path, paused_commit):
    content = secrets.token_bytes(MIB)
    holder, url = killed_between_object_and_row(start, database_url, tmp_path, paused_commit, content)
    with start() as server:
        holder.server = server
        assert holder.visible() == {}
        again = f"{server.url}/v1/objects/{url.rpartition('/')[2]}"
        assert requests.put(again, data=content, timeout=120).status_code == 200
        got = holder.download("a").content
        assert hashlib.sha256(got).digest() == hashlib.sha256(content).digest()
    assert run_audit() == []


def test_after_a_kill_between_object_and_row_housekeeping_deletes_both(
    start, database_url, tmp_path, paused_commit, settings
):
    killed_between_object_and_row(start, database_url, tmp_path, paused_commit, secrets.token_bytes(MIB))
    use(settings, FOLDER, location=str(tmp_path / "artifacts"))
    assert StorageUsage.objects.get().byte_count == MIB
    delete_due_objects(timezone.now() + ABANDONED_AFTER + timedelta(hours=1))
    assert not StoredArtifact.objects.exists()
    assert not [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file() and path.stat().st_size]
    assert StorageUsage.objects.get().byte_count == 0
    assert (run_audit(), audit_objects()) == ([], [])
