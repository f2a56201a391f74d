"""With the triggers switched off by hand, `manage.py audit --chains` names what was changed."""

import base64
import hashlib
import json
from io import StringIO

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.core.management import call_command
from django.db import connection

from orchestrator.audit.runner import run_audit
from orchestrator.evidence.chain_models import Checkpoint, EvidenceChain, OperatorEventLink
from orchestrator.evidence.checkpoint_files import file_checkpoints
from orchestrator.evidence.dsse import sealed_envelope
from orchestrator.evidence.models import SigningKey
from orchestrator.evidence.operator_chains import link_hash
from orchestrator.evidence.public_keys import key_id, public_key_pem
from runtime_jobs.db_time import database_now
from runtime_jobs.events import EventRow, event_hash
from runtime_jobs.models import Job, JobEvent, OperatorEvent
from tests.orchestrator.evidence.conftest import folders as folders  # noqa: PLC0414 - a fixture
from tests.orchestrator.evidence.world import checkpoints, ended_job, operator_event
from tests.tampering import tamper, triggers_off

pytestmark = pytest.mark.django_db(transaction=True)

JOBS, EVENTS, OPERATORS = "runtime_jobs", "runtime_job_events", "operator_events"


@pytest.fixture
def job(transactional_db) -> Job:
    """An ended job, operator events, and checkpoints with copies. Nothing is wrong."""
    for _ in range(3):
        operator_event()
    job = ended_job()
    checkpoints()
    file_checkpoints()
    assert [str(finding) for finding in run_audit(chains=True)] == []
    return job


def found() -> dict[str, str]:
    """Return the places that the audit names, by code."""
    return {finding.code: ", ".join(finding.broken_for) for finding in run_audit(chains=True)}


def test_the_command_exits_with_1_and_names_the_row(job, capsys):
    tamper(EVENTS, "UPDATE runtime_job_events SET actor_id = 'mallory' WHERE seq = 2")
    with pytest.raises(SystemExit) as exited:
        call_command("audit", chains=True)
    assert exited.value.code == 1
    assert f"{job.job_ulid} at event 2" in capsys.readouterr().out


def test_an_edited_row(job):
    tamper(EVENTS, "UPDATE runtime_job_events SET payload_json = payload_json || '{\"x\": 1}' WHERE seq = 3")
    assert found() == {"I8c": f"{job.job_ulid} at event 3"}


def test_a_deleted_row(job):
    tamper(EVENTS, "DELETE FROM runtime_job_events WHERE seq = 2")
    assert found()["I8c"] == f"{job.job_ulid} at event 3"
    assert {"I8", "I8h"} <= set(found())


def test_swapped_rows(job):
    with triggers_off(EVENTS), connection.cursor() as cursor:
        for before, after in ((2, -1), (3, 2), (-1, 3)):
            cursor.execute("UPDATE runtime_job_events SET seq = %s WHERE seq = %s", [after, before])
    assert found()["I8c"] == f"{job.job_ulid} at event 2"


def test_a_tail_that_was_cut_off_with_the_row_of_the_job(job):
    """The chain that is left is valid, and the row agrees with it. Only the checkpoint knows of the end."""
    left = JobEvent.objects.get(job=job, seq=job.event_seq - 1)
    tamper(EVENTS, "DELETE FROM runtime_job_events WHERE seq = %s", [job.event_seq])
    tamper(
        JOBS,
        "UPDATE runtime_jobs SET state = 'executing', status = 'running', finished_at = NULL, failure_reason = NULL,"
        " failure_class = NULL, event_seq = %s, event_head = %s",
        [left.seq, left.hash],
    )
    assert found()["E3"] == job.job_ulid
    assert "I8c" not in found()


def test_a_chain_that_was_made_anew(job):
    with triggers_off(EVENTS, JOBS):
        before = ""
        for event in JobEvent.objects.of(job.job_ulid):
            columns = {name: getattr(event, name) for name in EventRow.__dataclass_fields__}
            row = EventRow(**columns | {"actor_id": "mallory", "prev_hash": before})
            before = event_hash(row)
            JobEvent.objects.filter(pk=event.pk).update(actor_id="mallory", prev_hash=row.prev_hash, hash=before)
        Job.objects.filter(pk=job.pk).update(event_head=before)
    assert found() == {"E3": job.job_ulid}


def test_a_job_that_was_deleted_with_its_history(job):
    tamper(EVENTS, "DELETE FROM runtime_job_events")
    for table in ("runtime_failure_explanations", "runtime_worker_leases"):
        tamper(table, f"DELETE FROM {table}")
    tamper(JOBS, "DELETE FROM runtime_jobs")
    assert found()["E3"] == job.job_ulid


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("spec = spec || '{\"n\": 1}', command_json = '[\"rm\"]'", "input"),
        ("payload_digest = repeat('0', 64)", "input"),
        ("result = '{\"n\": 2}'", "result"),
    ],
)
def test_a_changed_request_or_result(job, change, part):
    tamper(JOBS, f"UPDATE runtime_jobs SET {change}")
    assert found() == {"I8d": f"{job.job_ulid}: {part}"}


class TestOperatorEvents:
    @pytest.fixture
    def second(self, job) -> OperatorEvent:
        return OperatorEvent.objects.get(pk=OperatorEventLink.objects.get(org_slug="acme", seq=2).event_id)

    def test_an_edited_one(self, second):
        tamper(OPERATORS, "UPDATE operator_events SET reason = 'another' WHERE id = %s", [second.pk])
        assert found() == {"E1h": f"acme: event 2 ({second.event_ulid}) or its link was changed"}

    def test_a_deleted_one(self, second):
        tamper(OPERATORS, "DELETE FROM operator_events WHERE id = %s", [second.pk])
        assert found() == {"E1": "acme #2", "E1h": "acme: event 2 was deleted"}

    def test_one_that_was_deleted_with_its_link(self, second):
        tamper(OPERATORS, "DELETE FROM operator_events WHERE id = %s", [second.pk])
        tamper("operator_event_links", "DELETE FROM operator_event_links WHERE event_id = %s", [second.pk])
        assert found() == {"E1": "acme #3", "E1h": "acme: event 2 was deleted with its link"}

    def test_one_that_was_inserted_into_the_past(self, second):
        columns = ", ".join(
            field.column for field in OperatorEvent._meta.concrete_fields if field.name not in {"id", "event_ulid"}
        )
        copy = (
            f"INSERT INTO operator_events (event_ulid, {columns}) SELECT 'opx_forged', {columns} FROM operator_events"
        )
        tamper(OPERATORS, f"{copy} WHERE id = %s", [OperatorEvent.objects.earliest("pk").pk])
        assert found() == {"E2": "opx_forged"}

    def test_a_chain_that_was_made_anew(self, second):
        """Without the second event: links, numbers and the end agree, but the checkpoint has signed another end."""
        tamper(OPERATORS, "DELETE FROM operator_events WHERE id = %s", [second.pk])
        with triggers_off("operator_event_links"):
            links = OperatorEventLink.objects.filter(org_slug="acme")
            links.filter(event_id=second.pk).delete()
            before = ""
            for seq, link in enumerate(links.order_by("seq"), start=1):
                digest = link_hash(OperatorEvent.objects.get(pk=link.event_id), seq=seq, prev_hash=before)
                links.filter(pk=link.pk).update(seq=seq, prev_hash=before, hash=digest)
                before = digest
            EvidenceChain.objects.filter(org_slug="acme").update(events=seq, head=before)
        number = Checkpoint.objects.get(org_slug="acme")
        assert found() == {
            "E5h": f"checkpoint {number.number} of acme: operator event 3 is not the one that was signed"
        }


class TestCheckpoints:
    @pytest.fixture
    def second(self, job) -> Checkpoint:
        ended_job()
        (written,) = [one for one in checkpoints() if one.org_slug == "acme"]
        file_checkpoints()
        return written

    def test_one_that_was_deleted(self, second):
        tamper("evidence_checkpoint_jobs", "DELETE FROM evidence_checkpoint_jobs WHERE checkpoint_id = %s", [second.pk])
        tamper("evidence_checkpoints", "DELETE FROM evidence_checkpoints WHERE id = %s", [second.pk])
        names = found()
        assert names["E5"] == "acme #2"
        assert names["E6"].endswith("acme/00000002.dsse.json: no such row")
        assert "E4" in names

    def test_one_whose_jobs_were_changed(self, second):
        tamper(
            "evidence_checkpoint_jobs",
            "UPDATE evidence_checkpoint_jobs SET seq = seq + 1 WHERE checkpoint_id = %s",
            [second.pk],
        )
        assert found()["E5h"] == "checkpoint 2 of acme: its jobs or its time are not those that were signed"

    @pytest.fixture
    def forged(self, second) -> Ed25519PrivateKey:
        """The second checkpoint is signed anew, by a key of the attacker, for another time."""
        private = Ed25519PrivateKey.generate()
        later = database_now()
        payload = _payload(second)
        payload["predicate"]["createdAt"] = later.isoformat().replace("+00:00", "Z")
        body = json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()
        envelope = sealed_envelope("application/vnd.in-toto+json", body, private)
        digest = _sha256(body)
        with triggers_off("evidence_checkpoints"):
            rows = Checkpoint.objects.filter(pk=second.pk)
            rows.update(envelope=envelope, sha256=digest, created_at=later)
        EvidenceChain.objects.filter(org_slug="acme").update(checkpoint_sha256=digest)
        return private

    def test_one_that_another_key_has_signed(self, forged):
        names = found()
        assert "None of the named keys has signed it" in names["E5h"]
        assert names["E6"].endswith("another content")

    def test_a_key_that_was_put_into_the_database_counts_unless_the_reader_names_his_own(self, forged, tmp_path):
        public = forged.public_key()
        own = SigningKey.objects.get().public_pem
        SigningKey.objects.create(key_id=key_id(public), public_pem=public_key_pem(public), created_at=database_now())
        assert set(found()) == {"E6"}, "the copy still shows it"
        (tmp_path / "own.pem").write_text(own)
        out = StringIO()
        with pytest.raises(SystemExit):
            call_command("audit", "--chains", "--key", str(tmp_path / "own.pem"), stdout=out)
        assert "checkpoint 2 of acme: None of the named keys has signed it" in out.getvalue()

    def test_the_audit_of_a_good_database_with_a_named_key(self, second, tmp_path):
        (tmp_path / "own.pem").write_text(SigningKey.objects.get().public_pem)
        call_command("audit", "--chains", "--key", str(tmp_path / "own.pem"), stdout=StringIO())


def _payload(checkpoint: Checkpoint) -> dict:
    return json.loads(base64.b64decode(checkpoint.envelope["payload"]))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
