"""The page of one job: its state, its history, its leases by fingerprint, its log."""

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from orchestrator.admin import formatting
from orchestrator.admin.formatting import format_duration
from orchestrator.admin.jobs import dependencies
from orchestrator.admin.jobs import log as jobs_log
from orchestrator.admin.jobs.actions import available_actions
from orchestrator.admin.labels import (
    CANCELING,
    CANCELS,
    COMMAND_ERROR,
    EVENTS,
    FAILURES,
    JOB_COLOURS,
    STATE_HEADLINES,
    WAIT_LABELS,
)
from orchestrator.selectors.pending_reasons.reason import ReasonCode
from orchestrator.services import cancellation, heartbeat, job_end, retries
from orchestrator.step_logs import job_log_writes
from orchestrator.step_logs.rows import store_and_count
from runtime_jobs.identifiers import fingerprint
from runtime_jobs.models import Job, JobEvent, StepLog
from runtime_jobs.states import CancelReason, FailureReason, JobState
from tests.factories import LATE_POLICY, OPERATOR, ProjectFactory, WorkerFactory, claimed, submitted, submitted_steps

QUERIES = 20


def page_of(client, job: Job):
    answer = client.get(f"/admin/runtime_jobs/job/{job.job_ulid}/change/")
    assert answer.status_code == 200
    return answer


def summary_of(client, job: Job):
    return page_of(client, job).context["page"].summary


@pytest.fixture
def worker(db):
    return WorkerFactory(slug="build-01")


def test_every_code_has_words():
    assert set(FAILURES) == set(FailureReason)
    assert set(CANCELS) == set(CancelReason)
    assert set(STATE_HEADLINES) == set(JobState)
    assert set(JOB_COLOURS) == {*JobState, CANCELING, COMMAND_ERROR}
    assert {*WAIT_LABELS, ReasonCode.BEHIND} == set(ReasonCode)
    for meaning in FAILURES.values():
        assert meaning.summary.endswith(".")
        assert meaning.advice.endswith(".")


def test_every_event_that_the_verbs_write_has_words(scene):
    assert set(JobEvent.objects.values_list("event_type", flat=True).distinct()) <= set(EVENTS)


def test_a_traced_step_shows_what_its_trace_does(olga, worker):
    worker.capabilities = [*worker.capabilities, "ptrace"]
    worker.save()
    finding = {"rule": "kill_outside", "severity": "high", "detail": "<b>1</b>", "count": 1}
    counts = {"processes": 7, "files_accessed": 0, "network_attempts": 3, "suspicious_activity": 1}
    trace = {"level": "network", "bytes": 9, "truncated": True, "counts": counts, "findings": [finding]}
    for level in ("network", "none"):
        submitted_steps(trace=level)
        taken = claimed(worker, job_types=("steps",))
        steps = [{"index": 0, "exit_code": 0} | ({"trace": trace} if level == "network" else {})]
        job_end.complete(lease_ulid=taken.lease.lease_ulid, worker=worker, exit_code=0, result={"steps": steps})
        text = page_of(olga, taken.job).content.decode()
        assert f"<dt>Trace</dt><dd>{level}</dd>" in text
        assert ("Worst findings" in text) == (level == "network")
        if level == "network":
            assert '<b>kill_outside</b> <span class="code">&lt;b&gt;1&lt;/b&gt;</span>' in text
            assert "The trace is incomplete." in text
            numbers = re.findall(r'<td class="number">(\S+)</td>', text[text.index("Worst findings") :])
            assert numbers[:4] == ["1", "7", "3", "\u2013"], "files were not recorded"


@pytest.mark.parametrize(
    "reason", [FailureReason.TIMED_OUT, FailureReason.TRACE_INCOMPLETE, FailureReason.WORKER_ERROR]
)
def test_a_failure_is_named_in_words_with_the_workers_own(reason, olga, worker):
    submitted()
    taken = claimed(worker)
    job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=worker, reason=reason, message="in its own words")
    summary = summary_of(olga, taken.job)
    assert (summary.headline, summary.message) == (FAILURES[reason].summary, "in its own words")
    assert FAILURES[reason].advice in summary.sentences


def test_a_command_is_shown_as_a_shell_would_take_it(olga):
    job = submitted(command=("sh", "-c", "sleep 100"))
    assert "sh -c &#x27;sleep 100&#x27;" in page_of(olga, job).content.decode()


def test_a_waiting_job_says_its_place_and_who_could_take_it(olga, worker):
    submitted()
    second = submitted()
    summary = summary_of(olga, second)
    assert summary.sentences == ["No worker is online in the pool shared-linux.", "#2 in queue."]
    assert summary.colour == "danger"
    type(worker).objects.update(last_seen_at="2100-01-01T00:00Z")
    summary = summary_of(olga, second)
    assert summary.sentences == ["Number 2 in the queue of the pool shared-linux; 1 matching worker is online."]
    assert summary.colour == "info"


def test_a_waiting_job_that_was_leased_before_is_redelivered(olga, worker):
    job = submitted()
    assert not [sentence for sentence in summary_of(olga, job).sentences if "Redelivered" in sentence]
    for sentence in ("Redelivered: leased 1 time before.", "Redelivered: leased 2 times before."):
        heartbeat.release(lease_ulid=claimed(worker).lease.lease_ulid, worker=worker)
        assert sentence in summary_of(olga, job).sentences
    assert sentence in page_of(olga, job).content.decode()


def test_a_running_job_says_where_and_how_long_and_how_far(olga, worker):
    submitted()
    taken = claimed(worker)
    heartbeat.renew(
        lease_ulid=taken.lease.lease_ulid,
        worker=worker,
        phase="executing",
        progress={"percent": 250, "message": "half"},
    )
    summary = summary_of(olga, taken.job)
    assert summary.headline == "Executing the command on build-01"
    assert "The lease expires in 1 min" in summary.sentences[0] or "The lease expires in 2 min" in summary.sentences[0]
    assert (summary.percent, summary.message) == (100, "half")
    cancellation.cancel(job_ulid=taken.job.job_ulid, actor=OPERATOR, deadline_seconds=30, message="stop it")
    assert "Cancel requested by operator olga (stop it)" in summary_of(olga, taken.job).sentences[1]


def test_a_lost_job_says_why_and_how_long_a_late_result_counts(olga, worker):
    submitted_steps(policy=LATE_POLICY)
    taken = claimed(worker, job_types=("steps",))
    job_end.fail(
        lease_ulid=taken.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR, message="in its own words"
    )
    summary = summary_of(olga, taken.job)
    assert (summary.headline, summary.badge, summary.colour) == ("Lost, a late result still counts", "lost", "warning")
    assert summary.sentences[0] == FAILURES[FailureReason.WORKER_ERROR].summary
    assert "A late result of the worker still counts. Without one the job fails in " in summary.sentences[1]
    assert summary.message == "in its own words"
    assert available_actions(Job.objects.get(pk=taken.job.pk)) == {"cancel", "retry"}


def test_a_job_whose_result_is_read_can_only_be_waited_for(olga, worker):
    submitted_steps(policy=LATE_POLICY)
    taken = claimed(worker, job_types=("steps",))
    heartbeat.report(lease_ulid=taken.lease.lease_ulid, worker=worker, phase="executing")
    job_end.complete(lease_ulid=taken.lease.lease_ulid, worker=worker, exit_code=0)
    assert summary_of(olga, taken.job).headline == "Reading the result"
    assert available_actions(Job.objects.get(pk=taken.job.pk)) == set()


def test_an_uploaded_job_leads_to_its_run(olga, scene):
    job = scene.jobs["good-1"]
    answer = page_of(olga, job)
    assert f'href="/runs/{job.ingest_run_id}/"' in answer.content.decode()
    assert ("processes", 14) in answer.context["page"].summary.counts


def test_a_count_of_one_has_a_singular(olga, worker):
    submitted()
    taken = claimed(worker)
    counts = {"processes": 1, "files_accessed": 2, "suspicious_activity": 1, "other_things": 3}
    job_end.complete(
        lease_ulid=taken.lease.lease_ulid, worker=worker, ingest_run_id="run_1", exit_code=0, result={"counts": counts}
    )
    shown = summary_of(olga, taken.job).counts
    assert set(shown) == {("process", 1), ("files accessed", 2), ("finding", 1), ("other things", 3)}


def test_a_canceled_job_says_who_and_why(olga, scene):
    summary = summary_of(olga, scene.jobs["superseded"])
    assert summary.headline == f"Canceled: {CANCELS[CancelReason.REQUESTED]}"
    assert (summary.sentences[0], summary.message) == ("Canceled by operator olga.", "a newer push came")


def test_a_blocked_job_leads_to_those_that_it_waits_for_and_they_to_it(olga, scene):
    deploy, notify = scene.jobs["deploy"], scene.jobs["notify"]
    needs = [scene.jobs[name].job_ulid for name in ("good-4", "running", "waiting-0")]
    answer = page_of(olga, deploy)
    found = answer.context["page"].dependencies
    assert [(one.job_ulid, one.badge.text, one.badge.colour) for one in found.depends_on] == [
        (needs[0], "succeeded", "success"), (needs[1], "executing", "primary"), (needs[2], "queued", "info"),
    ]  # fmt: skip
    assert [(one.job_ulid, one.badge.text, one.name) for one in found.dependents] == [
        (notify.job_ulid, "blocked", "make notify")
    ]
    text = answer.content.decode()
    assert all(f"/admin/runtime_jobs/job/{one}/change/" in text for one in [*needs, notify.job_ulid])
    assert answer.context["page"].summary.headline == "Blocked by dependencies"
    assert answer.context["page"].summary.sentences == [f"It starts after {needs[1]} and {needs[2]}."]


def test_a_job_that_stands_alone_has_no_such_tables(olga, scene):
    assert "Dependents" not in page_of(olga, scene.jobs["oom"]).content.decode()


def test_of_many_that_wait_the_first_are_shown(olga, worker, monkeypatch):
    monkeypatch.setattr(dependencies, "MAX_DEPENDENTS", 2)
    project = ProjectFactory()
    first = submitted(project)
    fan = [submitted(project, depends_on=(first,)) for _ in range(3)]
    found = page_of(olga, first).context["page"].dependencies
    assert [one.job_ulid for one in found.dependents] == [one.job_ulid for one in fan[:2]]
    assert found.truncated


def test_the_newest_attempt_of_a_dependency_is_the_one_that_counts(olga, worker):
    project = ProjectFactory()
    first = submitted(project)
    cancellation.cancel(job_ulid=first.job_ulid, actor=OPERATOR, deadline_seconds=30)
    again = retries.retry(job_ulid=first.job_ulid, actor=OPERATOR, reason="again").job
    waiting = submitted(project, depends_on=(first,))
    (shown,) = page_of(olga, waiting).context["page"].dependencies.depends_on
    assert (shown.job_ulid, shown.attempt) == (again.job_ulid, 2)


def test_all_attempts_are_there_and_lead_to_each_other(olga, scene):
    first, second = scene.jobs["lost"], scene.jobs["lost-again"]
    answer = page_of(olga, first)
    assert [row.job.job_ulid for row in answer.context["page"].attempts] == [second.job_ulid, first.job_ulid]
    assert f"/admin/runtime_jobs/job/{second.job_ulid}/change/" in answer.content.decode()
    assert "Retried as attempt 2: succeeded." in answer.context["page"].summary.sentences


def test_the_timeline_is_newest_first_and_says_who(olga, scene):
    moments = page_of(olga, scene.jobs["lost"]).context["page"].timeline
    assert [moment.seq for moment in moments] == sorted((moment.seq for moment in moments), reverse=True)
    assert (moments[0].label, moments[0].actor, moments[0].from_state, moments[0].to_state) == (
        "Failed", "System", "executing", "failed",
    )  # fmt: skip
    assert ("worker", "build-02") in moments[0].facts
    assert (moments[-1].label, moments[-1].actor, moments[-1].offset) == ("Queued", "client alice", "+0.0 s")
    assert moments[-2].actor == "worker build-02"


def test_leases_are_shown_by_their_fingerprint(olga, scene):
    claim = scene.claims["running"]
    text = page_of(olga, scene.jobs["running"]).content.decode()
    assert fingerprint(claim.lease.lease_ulid) in text
    assert claim.lease.lease_ulid not in text


def test_a_lease_id_in_a_workers_own_words_is_left_out(olga, worker):
    submitted()
    taken = claimed(worker)
    lease = taken.lease.lease_ulid
    job_log_writes.append_log(
        lease_ulid=lease, worker=worker, seq=0, chunk=f"POST /v1/runtime/leases/{lease}/logs".encode()
    )
    job_end.fail(
        lease_ulid=lease,
        worker=worker,
        reason=FailureReason.WORKER_ERROR,
        message=f"409 for /v1/runtime/leases/{lease}/report",
    )
    answer = page_of(olga, taken.job)
    assert "rtl_" not in answer.content.decode()
    assert answer.context["page"].summary.message == "409 for /v1/runtime/leases/(lease id)/report"
    assert lease not in olga.get(f"/admin/runtime_jobs/job/{taken.job.job_ulid}/log/").json()["text"]


@pytest.mark.parametrize("submit", [submitted, submitted_steps])
def test_the_raw_log_of_every_job_type_can_be_opened(olga, worker, submit):
    job = submit()
    lease = claimed(worker, job_types=(job.job_type,)).lease
    job_log_writes.append_log(lease_ulid=lease.lease_ulid, worker=worker, seq=0, chunk=b"\x1b[1mprinted")
    [link] = re.findall(r'href="([^"]*)">Raw log</a>', page_of(olga, job).content.decode())
    answer = olga.get(link)
    assert answer.status_code == 200, link
    assert b"".join(answer.streaming_content) == b"\x1b[1mprinted"


def test_a_job_has_a_page_by_its_id_and_by_its_key(olga, scene):
    job = scene.jobs["oom"]
    assert page_of(olga, job).context["original"] == job
    assert olga.get(f"/admin/runtime_jobs/job/{job.pk}/change/").context["original"] == job
    assert olga.get(f"/admin/runtime_jobs/job/rtj_{'0' * 26}/change/").status_code == 302


def test_a_page_costs_the_same_however_long_the_story(olga, worker):
    submitted()
    taken = claimed(worker)
    few = queries_of(olga, taken.job)
    for seq in range(30):
        job_log_writes.append_log(lease_ulid=taken.lease.lease_ulid, worker=worker, seq=seq, chunk=b"line\n")
    for phase in ("checking_out", "executing"):
        heartbeat.report(lease_ulid=taken.lease.lease_ulid, worker=worker, phase=phase)
    assert few <= QUERIES
    assert queries_of(olga, taken.job) <= few + 1  # the chunks, now that there are some


def queries_of(client, job: Job) -> int:
    page_of(client, job)
    with CaptureQueriesContext(connection) as seen:
        page_of(client, job)
    return len(seen)


# --- the log ----------------------------------------------------------------------------------------------------------


def printed(job: Job, *chunks: bytes, step: int = 0) -> None:
    log = StepLog.objects.create(job=job, step=step)
    for chunk in chunks:
        store_and_count(log, chunk, digest="", now=job.created_at)


def test_the_page_has_the_end_of_a_long_log(db):
    job = submitted()
    printed(job, *(f"{number:05}\n".encode() * 2000 for number in range(40)))
    piece = jobs_log.tail(job)
    assert piece.truncated
    assert piece.text.endswith("00039\n")
    assert piece.text.startswith("0003")
    assert len(piece.text) <= jobs_log.TAIL_BYTES
    assert piece.cursor == f"0.{40 * 2000 * 6}"


def test_one_huge_chunk_is_cut_too(db):
    job = submitted()
    printed(job, b"a" * 500_000 + b"end")
    assert len(jobs_log.tail(job).text) == jobs_log.TAIL_BYTES
    assert jobs_log.tail(job).truncated


def test_a_follower_gets_what_came_since_and_hears_the_end(olga, worker):
    submitted()
    taken = claimed(worker)
    lease = taken.lease.lease_ulid
    log = f"/admin/runtime_jobs/job/{taken.job.job_ulid}/log/"

    def more(cursor):
        return olga.get(log, {"after": cursor}).json()

    assert more("") == {"text": "", "cursor": "", "truncated": False, "ended": False}
    job_log_writes.append_log(lease_ulid=lease, worker=worker, seq=0, chunk=b"one\n")
    job_log_writes.append_log(lease_ulid=lease, worker=worker, seq=1, chunk=b"two\n")
    assert more("") == {"text": "one\ntwo\n", "cursor": "0.8", "truncated": False, "ended": False}
    assert more("0.4") == {"text": "two\n", "cursor": "0.8", "truncated": False, "ended": False}
    assert more("0.8")["text"] == ""
    job_log_writes.append_log(lease_ulid=lease, worker=worker, seq=0, step=1, chunk=b"step\n")
    job_end.complete(lease_ulid=lease, worker=worker, ingest_run_id="run_1")
    assert more("0.8") == {"text": "step\n", "cursor": "0.8-1.5", "truncated": False, "ended": False}
    assert more("0.8-1.5") == {"text": "", "cursor": "0.8-1.5", "truncated": False, "ended": True}
    assert more("'; --")["text"] == "one\ntwo\nstep\n"


def test_the_log_needs_the_permission_to_see_jobs(client, db):
    from tests.orchestrator.admin.conftest import client_of, person  # noqa: PLC0415 - only here

    job = submitted()
    assert client_of(person("sven")).get(f"/admin/runtime_jobs/job/{job.job_ulid}/log/").status_code == 403
    assert client.get(f"/admin/runtime_jobs/job/{job.job_ulid}/log/").status_code == 302


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text", "text"),
        (b"10%\r50%\r100%\ndone", "100%\ndone"),
        (b"dos\r\nlines\r\n", "dos\nlines\n"),
        (b"last\r", "last"),
        (b"bell\x07 nul\x00 tab\t", "bell nul tab\t"),
        (b"\xff\xfe caf\xc3\xa9", "\ufffd\ufffd caf\xe9"),
    ],
)
def test_a_log_is_shown_as_a_terminal_would(raw, shown):
    assert jobs_log.plain_text(raw) == shown


@pytest.mark.timeout(60)
def test_no_log_keeps_the_page_waiting():
    for nasty in (b"a" * 65536, b"\r" * 65536, b"\x1b]" * 32768, b"\x1b[" + b"1" * 65000, b"rtl_" * 16384):
        jobs_log.plain_text(nasty)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0.0 s"),
        (0.44, "0.4 s"),
        (42, "42 s"),
        (60, "1 min"),
        (192.4, "3 min 12 s"),
        (3600, "1 h"),
        (90061, "1 d 1 h"),
    ],
)
def test_a_length_of_time_is_shown_in_two_units(seconds, words):
    assert format_duration(seconds) == words


def test_every_value_of_an_event_has_a_text():
    shown = {
        "name dist/a b size bytes 5, x": [{"name": "dist/a b", "size_bytes": 5}, "x"],
        "a [None, {'b': 1}]": {"a": [None, {"b": 1}]},
        "None, [1]": [None, [1]],
        "7": 7,
    }
    assert {text: formatting.json_text(value) for text, value in shown.items()} == {text: text for text in shown}
