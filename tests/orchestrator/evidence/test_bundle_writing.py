"""The content of audit bundles: whose rows, of which time, from one snapshot, and what a changed database gives away."""

import io
import json
import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.evidence import bundle_format as form
from orchestrator.evidence import replays
from orchestrator.evidence.bundle_writing import BundleScope, write_bundle
from orchestrator.evidence.replay_comparison import confirm_record
from orchestrator.evidence.replays import ReplayRequest
from orchestrator.evidence.signing_keys import create_signing_key, public_keys, retire_signing_key, sign
from orchestrator.evidence.verifying import BundleRefused, verify_bundle
from orchestrator.services import job_end
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.read_snapshot import SnapshotTimeout
from tests.factories import OPERATOR, OrganizationFactory, ProjectFactory, claimed, submitted
from tests.orchestrator.evidence.archives import contents_of, sha256
from tests.orchestrator.protocols.stella.requests import claim, complete, fail, ok, row_of, submit

pytestmark = pytest.mark.django_db
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR_AWAY = datetime(2100, 1, 1, tzinfo=UTC)


def written(tenant: str = "acme", since=LONG_AGO, until=FAR_AWAY, **options) -> bytes:
    target = io.BytesIO()
    done = write_bundle(target, BundleScope(tenant, since, until), **{"max_seconds": 60} | options)
    bundle = target.getvalue()
    assert (done.size, done.sha256) == (len(bundle), sha256(bundle))
    return bundle


def entries(bundle: bytes, name: str) -> list:
    return [json.loads(line)["entry"] for line in contents_of(bundle)[name].splitlines()]


def verified(bundle: bytes, keys=None):
    return verify_bundle(io.BytesIO(bundle), keys or public_keys())


def change_unseen(sql: str, *values) -> None:
    """Changes rows as a user of the database does who switches the triggers off."""
    tables = ("runtime_jobs", "runtime_job_events")
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        cursor.execute(sql, values)
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


@pytest.fixture
def jobs(alice, worker, project):
    """A job that succeeded, one that failed, one that waits, and one of another type."""
    first = submit(alice, payload={"imageRef": "nginx", "n": 1.5, "ä": [None, True]})
    complete(claim(worker), outputs={"found": 1e22, "text": "é"}, verdict="pass")
    second = submit(alice, jobType="policy-run")
    fail(claim(worker))
    third = submit(alice)
    return [row_of(shown) for shown in (first, second, third)] + [submitted(project)]


class TestContent:
    def test_it_has_jobs_with_their_whole_histories(self, jobs):
        bundle = written()
        found = verified(bundle)
        assert found.lines[form.JOBS] == 4
        rows = entries(bundle, form.JOBS)
        assert [row["job"]["ulid"] for row in rows] == [job.job_ulid for job in jobs]
        assert [row["job"]["status"] for row in rows] == ["completed", "failed", "queued", "queued"]
        assert rows[0]["payload"] == {"imageRef": "nginx", "n": 1.5, "ä": [None, True]}
        assert rows[2]["result"] is None
        assert rows[3]["payload"] is None
        assert rows[3]["job"]["request"]
        history = entries(bundle, form.HISTORY)
        assert [row["row"]["event_ulid"] for row in history] == list(
            JobEvent.objects.order_by("job__pk", "seq").values_list("event_ulid", flat=True)
        )

    def test_the_envelopes_are_those_of_the_api(self, jobs, alice):
        history = entries(written(), form.HISTORY)
        shown = ok(alice.get(f"/api/jobs/{entries(written(), form.JOBS)[0]['job']['jobId']}/events"))["results"]
        of_first = [row["envelope"] for row in history if row["row"]["job_ulid"] == jobs[0].job_ulid]
        assert of_first == shown

    def test_many_events_take_several_pages(self, monkeypatch, jobs):
        whole = written()
        monkeypatch.setattr("orchestrator.evidence.bundle_writing.EVENTS_PER_PAGE", 2)
        monkeypatch.setattr("orchestrator.evidence.bundle_writing.JOBS_PER_PAGE", 3)
        assert written() == whole

    def test_the_same_snapshot_gives_the_same_bytes(self, jobs):
        assert written() == written()

    def test_throttles_are_in_it(self, project):
        for tenant in ("acme", "intruder"):
            record_operator_event(
                "limit.set", target=f"{tenant}:*", cause=Cause(OPERATOR), after={"n": 3}, org_slug=tenant
            )
        record_operator_event("member.added", target="x", cause=Cause(OPERATOR), org_slug="acme")
        found = entries(written(), form.THROTTLES)
        assert [(row["envelope"]["eventType"], row["envelope"]["tenant"]) for row in found] == [("limit.set", "acme")]

    def test_another_tenants_rows_are_not_in_it(self, jobs):
        other = ProjectFactory(organization=OrganizationFactory(slug="intruder"))
        mine = written()
        foreign = submitted(other)
        assert written() == mine
        assert [row["job"]["ulid"] for row in entries(written("intruder"), form.JOBS)] == [foreign.job_ulid]
        assert verified(written("nobody")).lines == dict.fromkeys(form.DATA_FILES, 0)

    def test_a_reader_confirms_the_verdicts_of_replays(self, jobs, worker):
        replayed = replays.replay(ReplayRequest(jobs[0].job_ulid, "audit", OPERATOR)).job
        (record,) = entries(written(), form.REPLAYS)
        assert confirm_record(record) is None, "without a verdict there is nothing to confirm"
        assert record["replayOf"] == entries(written(), form.JOBS)[0]["job"]["jobId"]
        assert entries(written(until=replayed.created_at), form.REPLAYS) == []
        complete(claim(worker))  # the job that waited before it
        complete(claim(worker), outputs={"found": 1e22, "text": "é"}, verdict="pass")
        row = replays.compare_replay(job_ulid=replayed.job_ulid)
        bundle = written(since=row.decided_at)
        assert verified(bundle).lines[form.REPLAYS] == 1
        (record,) = entries(bundle, form.REPLAYS)
        assert confirm_record(record).verdict == record["verdict"] == row.verdict
        assert entries(written(since=row.decided_at + timedelta(seconds=1)), form.REPLAYS) == []


class TestTime:
    def test_it_has_the_jobs_that_lived_in_the_time(self, project, worker):
        now = datetime.now(UTC)
        ended, open_, later = (submitted(project, now=now + timedelta(minutes=minute)) for minute in (0, 0, 10))
        lease = claimed(worker, now=now).lease.lease_ulid
        job_end.fail(lease_ulid=lease, worker=worker, reason="command_failed", now=now + timedelta(minutes=1))

        def found(since: int, until: int) -> list[str]:
            scope = (now + timedelta(minutes=since), now + timedelta(minutes=until))
            return [row["job"]["ulid"] for row in entries(written("acme", *scope), form.JOBS)]

        assert found(0, 5) == [ended.job_ulid, open_.job_ulid]
        assert found(2, 5) == [open_.job_ulid]
        assert found(2, 11) == [open_.job_ulid, later.job_ulid]
        assert found(0, 10) == [ended.job_ulid, open_.job_ulid]
        assert found(-5, 0) == []

    def test_a_snapshot_that_is_open_for_too_long_ends_the_writing(self, jobs):
        with pytest.raises(SnapshotTimeout):
            written(max_seconds=-1)

    def test_what_a_page_raises_ends_the_writing(self, jobs):
        def stop():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            written(on_page=stop)


class TestKeys:
    def test_a_key_that_was_retired_between_two_bundles_verifies_the_first_one(self, jobs):
        first = written()
        (old,) = public_keys()
        retire_signing_key(sign("t", b"")["signatures"][0]["keyid"], cause=Cause(OPERATOR, "rotation"))
        create_signing_key(actor=OPERATOR)
        new = public_keys()[0]
        second = written()
        assert verified(first, [old]).lines == verified(second, [new]).lines
        for bundle, key in ((first, new), (second, old)):
            with pytest.raises(BundleRefused, match="None of the named keys"):
                verified(bundle, [key])


class TestChangedDatabase:
    """A server that signs what its database has does not hide that rows were changed."""

    def fault(self) -> str:
        with pytest.raises(BundleRefused) as caught:
            verified(written())
        return str(caught.value)

    def test_a_payload(self, jobs):
        change_unseen(
            "UPDATE runtime_jobs SET spec = jsonb_set(spec, '{payload,imageRef}', '\"evil\"') WHERE job_ulid = %s",
            jobs[0].job_ulid,
        )
        assert "line 1: the payload of job" in self.fault()

    def test_a_result(self, jobs):
        change_unseen("UPDATE runtime_jobs SET exit_code = 7 WHERE job_ulid = %s", jobs[1].job_ulid)
        assert "line 2: the result of job" in self.fault()

    def test_an_event(self, jobs):
        change_unseen(
            "UPDATE runtime_job_events SET actor_id = 'mallory' WHERE job_ulid = %s AND seq = 2", jobs[0].job_ulid
        )
        assert "history.jsonl, line 2: event 2" in self.fault()

    def test_a_deleted_event(self, jobs):
        change_unseen("DELETE FROM runtime_job_events WHERE job_ulid = %s AND seq = 2", jobs[0].job_ulid)
        assert "does not follow the event before it" in self.fault()

    def test_a_deleted_end(self, jobs):
        change_unseen(
            "DELETE FROM runtime_job_events WHERE job_ulid = %s AND seq = (SELECT event_seq FROM runtime_jobs"
            " WHERE job_ulid = %s)",
            jobs[1].job_ulid,
            jobs[1].job_ulid,
        )
        assert f"the history of job {jobs[1].job_ulid}" in self.fault() or "result" in self.fault()


@pytest.mark.django_db(transaction=True)
def test_jobs_that_change_meanwhile_are_those_of_the_snapshot(project, worker):
    first = submitted(project)
    other_pages = []

    def change_once() -> None:
        if other_pages:
            return
        other_pages.append(True)
        thread = threading.Thread(target=change)
        thread.start()
        thread.join()

    def change() -> None:
        try:
            submitted(project)
            claimed(worker)
        finally:
            connection.close()

    bundle = written(on_page=change_once)
    assert verified(bundle).lines[form.JOBS] == 1
    assert [row["job"]["status"] for row in entries(bundle, form.JOBS)] == ["queued"]
    assert verified(written()).lines[form.JOBS] == 2
    assert Job.objects.get(pk=first.pk).state != "queued"


@pytest.mark.django_db(transaction=True)
def test_it_is_a_transaction_that_only_reads(project):
    submitted(project)

    def write() -> None:
        with transaction.atomic():
            Job.objects.update(log_bytes=1)

    with pytest.raises(Exception, match="read-only transaction"):
        written(on_page=write)
