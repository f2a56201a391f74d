"""The script in `docs/evidence.md`, which uses no code of this project, agrees with the verifier."""

import re
import subprocess
import sys

import pytest

from config.paths import BASE_DIR
from orchestrator.evidence import bundle_format as form
from orchestrator.evidence.public_keys import public_key_pem
from orchestrator.evidence.signing_keys import public_keys
from tests.orchestrator.evidence.archives import (
    KEY,
    OTHER,
    bundle_of,
    history_of,
    lines_of,
    members_of,
    sample_files,
    text,
)
from tests.orchestrator.evidence.test_bundle_writing import written
from tests.orchestrator.protocols.stella.requests import claim, complete, submit

FILES = sample_files()
MEMBERS = members_of(FILES)
PUBLIC = KEY.public_key()


@pytest.fixture
def verdict(tmp_path):
    """Runs the script on a bundle and returns its exit code and its output."""
    (script,) = re.findall(
        r"^```python\n(.*?)^```$", (BASE_DIR / "docs/evidence.md").read_text(), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "verify_bundle.py").write_text(script)

    def run(bundle: bytes, key=PUBLIC) -> tuple[int, str]:
        (tmp_path / "b.tar.gz").write_bytes(bundle)
        (tmp_path / "k.pem").write_text(public_key_pem(key))
        command = [sys.executable, "-I", "verify_bundle.py", "b.tar.gz", "k.pem"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout + ran.stderr

    return run


def test_the_script_of_the_document_agrees(verdict):
    code, output = verdict(bundle_of(MEMBERS))
    assert code == 0, output
    assert output.startswith("verified: acme, 3 jobs, signed by ")
    changed = dict(FILES)
    changed[form.JOBS] = changed[form.JOBS].replace(b'{"n":1}', b'{"n":2}')
    job, rows = history_of(f"rtj_{9:026}", text({"n": 9}), text({"exit_code": 0}))
    other_payload = {form.JOBS: lines_of([job.replace('{"n":9}', '{"n":8}')]), form.HISTORY: lines_of(rows)}
    other_event = {
        form.JOBS: lines_of([job]),
        form.HISTORY: lines_of([rows[0], rows[1].replace("{}", '{"x":1}'), rows[2]]),
    }
    no_end = {form.JOBS: lines_of([job]), form.HISTORY: lines_of(rows[:2])}
    header = (form.tar_header("notes.txt", 0), b"")
    refusals = {
        "jobs.jsonl was changed": members_of(FILES)[:2] + members_of(changed)[2:],
        "jobs.jsonl, line 1: another payload": members_of(FILES | other_payload),
        "history.jsonl, line 2: no link": members_of(FILES | other_event),
        "has another end": members_of(FILES | no_end),
        "other members": [*MEMBERS, header],
    }
    for fault, members in refusals.items():
        code, output = verdict(bundle_of(members))
        assert (code, fault in output) == (1, True), (fault, output)
    assert verdict(bundle_of(MEMBERS), OTHER.public_key())[0] == 1


@pytest.mark.django_db
def test_the_script_verifies_a_bundle_of_the_server(verdict, alice, worker):
    submit(alice, payload={"imageRef": "nginx", "n": 1.5, "ä": [None]})
    complete(claim(worker), outputs={"found": 1e22}, verdict="pass")
    submit(alice)
    bundle = written()
    code, output = verdict(bundle, public_keys()[0])
    assert (code, "acme, 2 jobs" in output) == (0, True), output
