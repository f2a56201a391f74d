"""`stella orch export|verify`: the file that an export leaves, and what a verification accepts."""

import hashlib
import json
import subprocess
import sys

import pytest

from config.paths import BASE_DIR
from orchestrator.evidence.public_keys import public_key_pem
from tests.orchestrator.cli.scripted_server import respond, scripted
from tests.orchestrator.evidence.archives import KEY, OTHER, bundle_of, members_of, sample_files

BUNDLE = bundle_of(members_of(sample_files()))
SHA256 = hashlib.sha256(BUNDLE).hexdigest()
JOB = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture
def keys(tmp_path):
    paths = tmp_path / "key.pem", tmp_path / "other.pem"
    for path, key in zip(paths, (KEY, OTHER), strict=True):
        path.write_text(public_key_pem(key.public_key()))
    return [str(path) for path in paths]


def stored(tmp_path, content=BUNDLE):
    path = tmp_path / "b.tar.gz"
    path.write_bytes(content)
    return str(path)


# --- verify -----------------------------------------------------------------------------------------------------------


def test_a_bundle_is_verified_without_server_and_token(shell, tmp_path, keys):
    words = ("orch", "verify", "--bundle", stored(tmp_path))
    found = shell.run(*words, "--key", keys[0])
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("verified: acme, 2026-01-01T00:00:00Z to 2026-02-01T00:00:00Z, 3 in jobs.jsonl")
    document = json.loads(shell.run(*words, "--key", keys[1], "--key", keys[0], "-o", "json").out)
    assert (document["verified"], document["sha256"], document["lines"]["history.jsonl"]) == (True, SHA256, 9)


def test_without_the_key_of_its_signer_nothing_is_proven(shell, tmp_path, keys):
    words = ("orch", "verify", "--bundle", stored(tmp_path))
    for options in ((), ("--key", keys[1])):
        found = shell.run(*words, *options)
        assert (found.code, found.out) == (1, "")
    assert "No public key was named" in shell.run(*words).err


@pytest.mark.parametrize("place", [0, 100, len(BUNDLE) // 2, -1])
def test_a_changed_byte_is_refused_and_leaves_nothing(shell, tmp_path, keys, place):
    changed = bytearray(BUNDLE)
    changed[place] ^= 1
    path = stored(tmp_path, bytes(changed))
    before = sorted(tmp_path.iterdir())
    found = shell.run("orch", "verify", "--bundle", path, "--key", keys[0], "-o", "json")
    assert (found.code, found.out, json.loads(found.err)["code"]) == (1, "", "not_verified")
    assert sorted(tmp_path.iterdir()) == before


def test_files_that_are_missing_or_no_keys(shell, tmp_path, keys):
    bundle = stored(tmp_path)
    assert shell.run("orch", "verify", "--bundle", f"{bundle}.missing", "--key", keys[0]).code == 66
    assert shell.run("orch", "verify", "--bundle", bundle, "--key", f"{keys[0]}.missing").code == 66
    found = shell.run("orch", "verify", "--bundle", bundle, "--key", bundle)
    assert found.code == 64
    assert "PEM" in found.err


def test_a_verification_loads_no_django(tmp_path, keys):
    program = """
import sys
from orchestrator.cli.main import main
assert main(sys.argv[1:]) == 0
assert "django" not in sys.modules
"""
    words = ["orch", "verify", "--bundle", stored(tmp_path), "--key", keys[0]]
    subprocess.run([sys.executable, "-c", program, *words], cwd=BASE_DIR, check=True, capture_output=True)


# --- export -----------------------------------------------------------------------------------------------------------


def exporting(*, content=BUNDLE, status="completed", sha256=SHA256, submits=None):
    """A server with an export that has ended."""
    failure = None if status == "completed" else {"reason": "timed_out", "message": "The snapshot was open too long."}
    job = {"jobId": JOB, "status": status, "result": {"exitCode": None}, "failure": failure}
    row = {"name": "audit-bundle.tar.gz", "sizeBytes": len(BUNDLE), "sha256": sha256}
    page = {"results": [{"name": "log.txt"}, row], "next": None}

    def answer(handler, _):
        path = handler.path.partition("?")[0]
        if handler.command == "POST":
            if submits is not None:
                submits.append(json.loads(handler.content))
            respond(handler, 201, json.dumps(job).encode())
        elif path == f"/api/jobs/{JOB}":
            respond(handler, 200, json.dumps(job).encode())
        elif path == f"/runs/{JOB}/artifacts":
            respond(handler, 200, json.dumps(page).encode())
        elif path == f"/runs/{JOB}/artifacts/audit-bundle.tar.gz":
            respond(handler, 302, b"", Location="/signed")
        else:
            respond(handler, 200, content, Content_Type="application/gzip", Content_Length=str(len(BUNDLE)))

    return scripted(answer)


def export(shell, server, path, *words):
    variables = {"STELLA_SERVER": server.url, "STELLA_TOKEN": "rto_api_test"}
    return shell.run("orch", "export", "--since", "2025-11-01", "--output", str(path), *words, **variables)


def test_an_export_becomes_a_file(shell, tmp_path):
    path, submits = tmp_path / "b.tar.gz", []
    path.write_text("an earlier one")
    with exporting(submits=submits) as server:
        found = export(shell, server, path, "--tenant", "acme", "--until", "2025-12-01", "-o", "json")
    assert json.loads(found.out) == {"jobId": JOB, "path": str(path), "sizeBytes": len(BUNDLE), "sha256": SHA256}
    assert path.read_bytes() == BUNDLE
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    payload = {"format": "audit-bundle", "since": "2025-11-01T00:00:00Z", "until": "2025-12-01T00:00:00Z"}
    assert submits == [{"jobType": "export", "tenant": "acme", "payload": payload}]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"status": "failed"}, 1, "timed_out: The snapshot was open too long."),
        ({"content": BUNDLE[:-1] + b"x"}, 1, "not those"),
        ({"content": BUNDLE[:-9]}, 69, "does not answer"),
    ],
)
def test_an_export_that_fails_leaves_nothing(shell, tmp_path, options, code, text):
    path = tmp_path / "b.tar.gz"
    with exporting(**options) as server:
        found = export(shell, server, path)
    assert found.code == code
    assert text in found.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_found_before_anything_is_exported(shell, tmp_path):
    with exporting() as server:
        found = export(shell, server, tmp_path / "missing" / "b.tar.gz")
    assert (found.code, server.requests) == (73, [])
