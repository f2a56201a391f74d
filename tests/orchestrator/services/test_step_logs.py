"""Appending to the masked log of a step: order, repeats, gaps, limits, and that no row ever has a part of a secret."""

import base64
import itertools
import random
import threading

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from orchestrator.core.sealing import SealedValueError
from orchestrator.core.unit_of_work import UnitOfWork, operation
from orchestrator.secrets import masks as job_masks
from orchestrator.step_logs import step_log_writes
from runtime_jobs.models import Job, LogChunk, StepAnnotation, WaitingLogChunk
from runtime_jobs.scrubbing import Scrubber, scrubbers
from tests.orchestrator.step_logs.logs import (
    append,
    close,
    end,
    log_of,
    new_steps,
    row_version,
    stored_bytes_of_all_rows,
    text_of,
)
from tests.runtime_jobs import plain_scrubbing

pytestmark = pytest.mark.django_db
SECRET = b"hunter2-and-more"


@pytest.fixture
def step():
    return new_steps()[0]


@pytest.fixture
def masks(monkeypatch):
    """The masks of every job, as its claim has stored them."""
    monkeypatch.setattr(job_masks, "masks_of", lambda _: (SECRET,))
    return (SECRET,)


@pytest.mark.parametrize("cut", range(1, len(SECRET)))
def test_a_secret_over_two_chunks_is_masked_and_never_in_a_row(step, masks, cut):
    append(step, 0, b"before " + SECRET[:cut], masks)
    assert (text_of(step), b"before " + SECRET[:1] in stored_bytes_of_all_rows()) == (b"before ", False)
    append(step, 1, SECRET[cut:] + b" after\n", masks)
    assert text_of(step) == b"before *** after\n"
    close(step)
    assert text_of(step) == b"before *** after\n"


@pytest.mark.parametrize("seed", range(25))
def test_shuffled_and_repeated_chunks_give_the_masked_text(step, masks, seed):
    chance = random.Random(seed)
    pieces = [SECRET, base64.b64encode(SECRET), SECRET[:5], SECRET[5:], b"hunter2", b"\n", b"line of text\n", b"h" * 9]
    text = b"".join(chance.choices(pieces, k=30))
    cuts = [0, *sorted(chance.sample(range(1, len(text)), 12)), len(text)]
    calls = [(seq, text[begin:after]) for seq, (begin, after) in enumerate(itertools.pairwise(cuts))]
    calls += chance.sample(calls, 4)
    chance.shuffle(calls)
    for seq, data in calls:
        append(step, seq, data, masks)
        rows = stored_bytes_of_all_rows()
        assert SECRET not in rows
        assert base64.b64encode(SECRET) not in rows
    close(step)
    assert text_of(step) == plain_scrubbing.scrubbed(text, [SECRET])
    assert log_of(step).held is None
    assert not WaitingLogChunk.objects.exists()


def test_the_first_chunk_under_a_number_counts(step):
    assert append(step, 0, b"first").is_new
    assert not append(step, 0, b"other").is_new
    assert append(step, 2, b"waits").is_new
    assert not append(step, 2, b"other").is_new
    append(step, 1, b" second ")
    assert not append(step, 2, b"other").is_new
    assert text_of(step) == b"first second waits"


def test_chunks_wait_for_an_earlier_one_until_the_step_ends(step):
    append(step, 0, b"a")
    append(step, 5, b"f")
    append(step, 3, b"d")
    assert text_of(step) == b"a"
    close(step)
    assert text_of(step) == b"adf"
    assert log_of(step).skipped == [[1, 3], [4, 5]]


def test_a_chunk_that_was_left_out_is_added_when_it_arrives(step):
    append(step, 4, b"e")
    close(step)
    for seq in (2, 2, 0, 3, 1, 1, 7, 6):
        append(step, seq, b"%d" % seq)
    assert text_of(step) == b"e203176"
    assert log_of(step).skipped == [[5, 6]]


def test_an_ended_step_closes_its_log_with_the_first_late_chunk(step):
    end(step, timezone.now())
    append(step, 3, b"late")
    log = log_of(step)
    assert (log.closed_at is not None, log.closed_bytes, text_of(step)) == (True, 0, b"late")


def test_at_the_limit_of_waiting_bytes_the_earlier_chunk_is_not_waited_for(step, monkeypatch):
    monkeypatch.setattr(step_log_writes, "MAX_WAITING_BYTES", 10)
    append(step, 1, b"bbbb")
    append(step, 2, b"cccc")
    append(step, 9, b"jj")
    assert text_of(step) == b""
    append(step, 5, b"ffff")
    assert text_of(step) == b"bbbbcccc"
    log = log_of(step)
    assert (log.waiting_bytes, log.waiting_count, log.skipped) == (6, 2, [[0, 1]])
    append(step, 0, b"a")
    close(step)
    assert text_of(step) == b"bbbbccccaffffjj"


def test_the_number_of_waiting_chunks_is_limited(step, monkeypatch):
    monkeypatch.setattr(step_log_writes, "MAX_WAITING_CHUNKS", 3)
    for seq in range(1, 6):
        append(step, seq, b"%d" % seq)
    assert (text_of(step), log_of(step).waiting_count) == (b"12345", 0), "the fourth one ended the wait"


def test_the_limit_of_a_step_is_reported_once_and_the_rest_is_dropped(step, masks, monkeypatch):
    monkeypatch.setattr(step_log_writes, "MAX_STEP_LOG_BYTES", 20)
    append(step, 3, b"never")
    append(step, 0, b"0123456789", masks)
    append(step, 1, b"0123456789abc" + SECRET[:5], masks)
    expected = b"01234567890123456789" + step_log_writes.TRUNCATED
    assert text_of(step) == expected
    log = log_of(step)
    assert (log.is_truncated, log.held, log.waiting_count) == (True, None, 0)
    for seq in (2, 3, 1):
        assert not append(step, seq, b"more", masks).is_new
    close(step)
    assert not append(step, 9, b"more", masks).is_new
    assert text_of(step) == expected
    assert not WaitingLogChunk.objects.exists()


def test_the_limit_may_be_reached_by_chunks_that_waited(step, monkeypatch):
    monkeypatch.setattr(step_log_writes, "MAX_STEP_LOG_BYTES", 5)
    for seq in range(9, 0, -1):
        append(step, seq, b"ab")
    append(step, 0, b"-")
    log = log_of(step)
    assert (text_of(step), log.waiting_bytes, log.waiting_count) == (b"-abab" + step_log_writes.TRUNCATED, 0, 0)


def test_a_call_writes_no_row_of_the_job(step, masks):
    before = row_version(Job, pk=step.job.pk)
    append(step, 0, b"text " + SECRET[:4], masks)
    append(step, 1, SECRET[4:], masks)
    close(step)
    assert row_version(Job, pk=step.job.pk) == before


def test_the_cost_of_a_call_does_not_grow(step, masks):
    def statements(seq):
        with CaptureQueriesContext(connection) as queries:
            append(step, seq, b"a line of text\n", masks)
        return [query["sql"] for query in queries if "SAVEPOINT" not in query["sql"]]

    append(step, 0, b"first\n", masks)
    few = statements(1)
    for seq in range(2, 60):
        append(step, seq, b"a line of text\n", masks)
    assert len(statements(60)) == len(few) == 2, "one lock, one write"
    assert LogChunk.objects.count() == 61


def test_what_is_held_back_is_sealed_and_returned_with_the_end(step, masks):
    append(step, 0, b"text " + SECRET[:5], masks)
    log = log_of(step)
    assert text_of(step) == b"text "
    assert SECRET[:5] not in bytes(log.held)
    close(step)
    assert text_of(step) == b"text " + SECRET[:5]
    close(step)
    assert text_of(step) == b"text " + SECRET[:5]


def test_a_log_that_ends_within_a_secret_does_not_show_its_beginning(step, masks):
    """A runner that lost its job between two chunks left the base64 of a secret without its last character."""
    append(step, 0, b"before " + base64.b64encode(SECRET)[:-3], masks)
    close(step)
    assert text_of(step) == b"before ***"


def test_the_beginning_of_a_secret_before_a_missing_chunk_is_masked(step, masks):
    append(step, 0, b"a " + SECRET[:-1], masks)
    append(step, 2, b"c ", masks)
    close(step)
    assert text_of(step) == b"a ***c "
    append(step, 3, b"d " + SECRET[:-1], masks)
    append(step, 1, SECRET[-1:] + b" late " + SECRET[:-1], masks)
    append(step, 4, b" e", masks)
    assert text_of(step) == b"a ***c d *** late *** e"


def test_held_bytes_do_not_open_in_the_log_of_another_step(masks):
    first, second = new_steps(2)
    append(first, 0, SECRET[:6], masks)
    append(second, 0, SECRET[:6], masks)
    one, other = log_of(first), log_of(second)
    other.held = one.held
    other.save(update_fields=["held"])
    with pytest.raises(SealedValueError):
        append(second, 1, b"x", masks)


def test_late_chunks_hold_back_too_until_the_log_is_finalized(step, masks):
    close_after = b"line\n"
    append(step, 0, close_after, masks)
    close(step)
    append(step, 1, b"late " + SECRET[:6], masks)
    assert text_of(step) == b"line\nlate "
    append(step, 2, SECRET[6:] + b"!" + SECRET[:3], masks)
    assert text_of(step) == b"line\nlate ***!"
    step_log_writes.flush_late_chunks(key=log_of(step).pk)
    assert text_of(step) == b"line\nlate ***!" + SECRET[:3]


def test_commands_become_annotations_without_secrets(step, masks):
    text = (
        b"::error file=a.py,line=3,title=T::it " + SECRET + b" broke\n::warning::50%25 of hun%0Ater\n"
        b"no ::notice::command\n  ::notice::" + SECRET[:7] + b"%0A" + SECRET[7:] + b"\r\n::error::unfinished"
    )
    for seq, byte in enumerate(text):
        append(step, seq, bytes([byte]), masks)
    close(step)
    found = list(
        StepAnnotation.objects.order_by("number").values_list("level", "message", "path", "start_line", "title")
    )
    assert found == [
        ("error", "it *** broke", "a.py", 3, "T"),
        ("warning", "50% of hun\nter", "", None, ""),
        ("notice", "hunter2\n-and-more", "", None, ""),
    ]


def test_the_number_of_annotations_is_limited(step, monkeypatch):
    monkeypatch.setattr(step_log_writes, "MAX_ANNOTATIONS", 3)
    append(step, 0, b"::error::a\n::error::b\n")
    append(step, 1, b"::error::c\n::error::d\n")
    append(step, 2, b"::error::e\n")
    assert [one.message for one in StepAnnotation.objects.order_by("number")] == ["a", "b", "c"]


def test_an_error_later_in_the_operation_undoes_the_chunk(step):
    @operation
    def fails(uow: UnitOfWork):
        step_log_writes.append_step_log(uow, step=step, seq=0, data=b"text", masks=())
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert append(step, 0, b"again").is_new
    assert text_of(step) == b"again"


def test_replacements_are_counted(step, masks):
    assert append(step, 0, SECRET + b" " + SECRET + SECRET[:4], masks).replacements == 2
    assert append(step, 1, SECRET[4:] + b".", masks).replacements == 1
    assert append(step, 1, SECRET, masks).replacements == 0


def test_one_scrubber_serves_all_chunks_of_a_job(step, masks):
    append(step, 0, b"a", masks)
    assert scrubbers.get(masks) is scrubbers.get(tuple(masks))


@pytest.mark.django_db(transaction=True)
@pytest.mark.slow
def test_of_equal_chunks_at_once_one_is_stored():
    step = new_steps()[0]
    ready, outcomes = threading.Barrier(4), []

    def call(data):
        try:
            ready.wait(30)
            outcomes.extend((seq, append(step, seq, data).is_new) for seq in range(20))
        finally:
            connection.close()

    threads = [threading.Thread(target=call, args=(b"%d" % number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(seq for seq, is_new in outcomes if is_new) == list(range(20))
    assert len(text_of(step)) == 20


def test_spellings_that_are_not_masked_are_reported_once_a_step_and_at_the_end_of_its_log(step, monkeypatch, caplog):
    masks = (b"a long secret of this job", b"another long secret")
    monkeypatch.setattr(step_log_writes.scrubbers, "get", lambda values: Scrubber(values, max_form_bytes=200))
    omitted = Scrubber(masks, max_form_bytes=200).omitted
    assert omitted > 1
    for seq in range(3):
        append(step, seq, b"printed: a long secret of this job\n", masks)
    close(step)
    close(step)
    assert text_of(step) == b"printed: ***\n" * 3 + step_log_writes.OMITTED % omitted
    assert log_of(step).closed_bytes == len(text_of(step))
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert f"{step.job_id} step {step.index}: {omitted} spellings" in warnings[0]


def test_a_log_whose_secrets_are_all_masked_ends_without_a_remark(step, masks):
    append(step, 0, b"text", masks)
    close(step)
    assert (text_of(step), log_of(step).omitted_forms) == (b"text", 0)
