"""`stella job replay|verify`: the verdict of a server, and the same one from a bundle without a server."""

import json

import pytest

from orchestrator.core.row_batches import RowRunner
from orchestrator.evidence import bundle_format as form
from orchestrator.evidence.public_keys import public_key_pem
from orchestrator.evidence.replay_tasks import compare_ended_replays
from runtime_jobs.models import Job
from tests.live_server import eventually
from tests.orchestrator.cli.scripted_server import respond, scripted
from tests.orchestrator.evidence.archives import KEY, bundle_of, lines_of, members_of, sample_files, text
from tests.orchestrator.protocols.stella.requests import claim, complete
from tests.tampering import overwrite_jobs

ORIGINAL, REPLAY, OTHER = (f"01890a5d-ac96-774b-bcce-b302099a805{digit}" for digit in "789")
MANIFEST = {
    "inputs": {"payloadDigest": "sha256:1"},
    "environment": {},
    "outputs": {"artifacts": {"report.json": "sha256:2"}},
    "inconclusive": [],
    "logs": {},
}


class TestReplay:
    pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

    @pytest.fixture
    def ended(self, stella, worker):
        """The id of a scan that has completed."""
        job_id = stella.run("job", "submit", "--type", "scan").out.strip()
        complete(claim(worker), outputs={"findings": 3})
        return job_id

    def replayed(self, stella, worker, job_id, outputs, *words):
        """A replay that waits, whose worker reports these outputs."""
        process = stella.start("job", "replay", "--id", job_id, "--wait", "-o", "json", *words)
        eventually(Job.objects.exclude(replay_of_job_ulid=None).exists)
        complete(claim(worker), outputs=outputs)
        compare_ended_replays(RowRunner())
        out, err = process.communicate(timeout=60)
        return process.returncode, json.loads(out), err

    def test_equal_outputs_are_a_match(self, stella, worker, ended):
        code, found, err = self.replayed(stella, worker, ended, {"findings": 3}, "--sealed", "--reason", "audit")
        assert (code, found["verdict"], found["difference"]) == (0, "match", None)
        assert (found["replayOf"], found["sealed"], found["reason"]) == (ended, True, "audit")
        assert err.strip() == found["jobId"]

    def test_other_outputs_are_1_and_the_first_difference_is_named(self, stella, worker, ended):
        code, found, _ = self.replayed(stella, worker, ended, {"findings": 4})
        assert (code, found["verdict"]) == (1, "diverged")
        assert (found["difference"]["expected"], found["difference"]["found"]) == (3, 4)

    def test_without_wait_the_id_of_the_replay_is_written(self, stella, ended):
        found = stella.run("job", "replay", "--id", ended, "--priority", "low")
        shown = json.loads(stella.run("job", "show", "--id", found.out.strip(), "-o", "json").out)
        assert (found.code, shown["replayOf"], shown["priority"]) == (0, ended, "low")

    def test_a_job_that_has_not_ended_is_refused(self, stella):
        job_id = stella.run("job", "submit", "--type", "scan").out.strip()
        found = stella.run("job", "replay", "--id", job_id, "--wait", "-o", "json")
        assert (found.code, json.loads(found.err)["code"]) == (77, "not_final")
        assert stella.run("job", "replay", "--id", ORIGINAL, "--wait").code == 66

    def test_a_changed_input_is_refused_and_nothing_is_queued(self, stella, ended):
        changed = Job.objects.get()
        overwrite_jobs(Job.objects.filter(pk=changed.pk), spec=changed.spec | {"payload": {"imageRef": "changed"}})
        found = stella.run("job", "replay", "--id", ended, "-o", "json")
        assert (found.code, json.loads(found.err)["code"]) == (77, "digest_mismatch")
        assert Job.objects.count() == 1


def test_a_replay_with_a_bundle_exports_from_the_end_of_the_job_on(shell, tmp_path):
    submits, path = [], tmp_path / "output.tar.gz"
    record = {"jobId": REPLAY, "replayOf": ORIGINAL, "verdict": "match", "difference": None, "reasons": []}
    ended = {"tenant": "acme", "status": "completed", "completedAt": "2026-01-01T10:00:00.123456Z"}
    artifact = {"name": "audit-bundle.tar.gz", "sizeBytes": 6, "sha256": None}
    answers = {
        ("POST", f"/api/jobs/{ORIGINAL}/replay"): (201, record | {"verdict": None}),
        ("GET", f"/api/jobs/{REPLAY}"): (200, ended),
        ("GET", f"/api/jobs/{REPLAY}/replay"): (200, record),
        ("GET", f"/api/jobs/{ORIGINAL}"): (200, ended),
        ("POST", "/api/jobs"): (201, {"jobId": OTHER}),
        ("GET", f"/api/jobs/{OTHER}"): (200, ended),
        ("GET", f"/runs/{OTHER}/artifacts"): (200, {"results": [artifact], "next": None}),
    }

    def answer(handler, _):
        key = handler.command, handler.path.partition("?")[0]
        if handler.command == "POST":
            submits.append(json.loads(handler.content))
        status, body = answers.get(key, (200, None))
        respond(handler, status, b"bundle" if body is None else json.dumps(body).encode())

    with scripted(answer) as server:
        variables = {"STELLA_SERVER": server.url, "STELLA_TOKEN": "rto_api_test"}
        words = ("job", "replay", "--id", ORIGINAL, "--sealed", "--bundle", str(path))
        found = shell.run(*words, **variables)
    assert (found.code, path.read_bytes()) == (0, b"bundle")
    assert found.out.startswith(f"match: {REPLAY} is a replay of {ORIGINAL}")
    replay, export = submits
    assert replay == {"reason": "replayed by the command line", "sealed": True}
    assert export["payload"] == {"format": "audit-bundle", "since": ended["completedAt"]}
    assert export["tenant"] == "acme"


# --- without a server -------------------------------------------------------------------------------------------------


def entry(**changes):
    found = {"jobId": REPLAY, "replayOf": ORIGINAL, "caveats": [], "expected": MANIFEST, "found": MANIFEST}
    return found | {"verdict": "match", "difference": None} | changes


def verified(shell, tmp_path, entries, job_id=ORIGINAL):
    """Verify a job in a bundle with these replays, which its key has signed."""
    files = sample_files() | {form.REPLAYS: lines_of([text(found) for found in entries])}
    bundle, key = tmp_path / "b.tar.gz", tmp_path / "key.pem"
    bundle.write_bytes(bundle_of(members_of(files)))
    key.write_text(public_key_pem(KEY.public_key()))
    return shell.run("job", "verify", "--bundle", str(bundle), "--job-id", job_id, "--key", str(key))


@pytest.mark.parametrize("job_id", [ORIGINAL, REPLAY])
def test_a_match_is_proven_without_a_server(shell, tmp_path, job_id):
    found = verified(shell, tmp_path, [entry()], job_id)
    assert (found.code, found.out, found.err) == (0, f"match: {REPLAY} is a replay of {ORIGINAL}\n", "")


DIVERGED = {
    "found": MANIFEST | {"outputs": {"artifacts": {"report.json": "sha256:3"}}},
    "verdict": "diverged",
    "difference": {"path": "/outputs/artifacts/report.json", "expected": "sha256:2", "found": "sha256:3"},
}


def test_a_difference_of_one_replay_is_named(shell, tmp_path):
    found = verified(shell, tmp_path, [entry(**DIVERGED), entry(jobId=OTHER)])
    assert found.code == 1
    diverged, match = found.out.splitlines()
    assert diverged.startswith("diverged")
    assert "/outputs/artifacts/report.json: expected 'sha256:2', found 'sha256:3'" in diverged
    assert match.startswith("match")


def test_a_verdict_that_the_manifests_contradict_is_refused(shell, tmp_path):
    found = verified(shell, tmp_path, [entry(**DIVERGED | {"verdict": "match", "difference": None})])
    assert (found.code, found.out) == (1, "")
    assert "is recorded as match, and its manifests are diverged" in found.err


def test_what_is_not_pinned_proves_nothing(shell, tmp_path):
    found = verified(shell, tmp_path, [entry(caveats=["The job had access to the network."], verdict="unverifiable")])
    assert (found.code, found.out.partition(":")[0]) == (1, "unverifiable")
    assert "network" in found.out


def test_a_replay_without_verdict_and_a_job_without_replay(shell, tmp_path):
    found = verified(shell, tmp_path, [entry(found=None, verdict=None)])
    assert (found.code, found.out) == (1, "")
    assert "no verdict" in found.err
    assert verified(shell, tmp_path, [entry()], OTHER).code == 66


def test_nothing_is_said_about_a_bundle_that_is_not_verified(shell, tmp_path):
    verified(shell, tmp_path, [entry()])
    words = ("job", "verify", "--bundle", str(tmp_path / "b.tar.gz"), "--job-id", ORIGINAL)
    found = shell.run(*words)
    assert (found.code, found.out) == (1, "")
