"""Counters of `/metrics` that have no event: added up in the process, written in one statement, served by all."""

import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for

import pytest
from django.db import DatabaseError, transaction

from orchestrator.core import counters
from orchestrator.core.counters import CounterBuffer, CounterValue
from orchestrator.core.db_scope import release_connection_after
from orchestrator.core.metrics_models import Count
from orchestrator.http.observability.actions_metrics import ACTIONS_COUNTERS, actions_metrics

A, B = CounterValue("test_a"), CounterValue("test_b", "x")


def stored() -> dict[tuple[str, str], float]:
    return {(row.name, row.detail): row.value for row in Count.objects.all()}


@pytest.fixture
def buffer() -> CounterBuffer:
    """A buffer whose thread never starts."""
    made = CounterBuffer()
    made._timer = threading.Timer(3600, lambda: None)
    return made


@pytest.mark.django_db
def test_counts_are_added_to_what_other_processes_have_written(buffer):
    buffer.add([A, A, B])
    buffer.write()
    other = CounterBuffer()
    other._timer = buffer._timer
    other.add([A], 5)
    other.write()
    other.write()
    assert stored() == {("test_a", ""): 7.0, ("test_b", "x"): 1.0}


@pytest.mark.django_db
def test_counts_that_the_database_refuses_are_kept(monkeypatch, buffer):
    def refuse():
        raise DatabaseError("down")

    buffer.add([A])
    monkeypatch.setattr(counters.transaction, "atomic", refuse)
    monkeypatch.setattr(CounterBuffer, "write_and_disconnect", lambda _self: None)
    buffer.write()
    monkeypatch.undo()
    buffer.write()
    assert stored() == {("test_a", ""): 1.0}


@pytest.mark.django_db(transaction=True)
def test_a_write_waits_for_the_one_that_another_thread_has_begun(monkeypatch, buffer):
    """Otherwise `/metrics` reads the rows before the counters that the thread has already taken are in them."""
    begun, go_on = threading.Event(), threading.Event()
    atomic = transaction.atomic

    def wait():
        begun.set()
        assert go_on.wait(60)
        return atomic()

    buffer.add([A])
    monkeypatch.setattr(counters.transaction, "atomic", wait)
    first = threading.Thread(target=buffer.write_and_disconnect)
    first.start()
    assert begun.wait(60)
    with ThreadPoolExecutor(1) as threads:
        second = threads.submit(release_connection_after(_write_and_read), buffer)
        wait_for([second], timeout=0.2)  # a second write that does not wait has ended by now
        go_on.set()
    first.join(60)
    assert second.result() == {("test_a", ""): 1.0}


def _write_and_read(buffer: CounterBuffer) -> dict[tuple[str, str], float]:
    buffer.write()
    return stored()


def test_the_eight_names_of_the_document_are_there_from_the_start():
    samples = [
        (sample.name, sample.labels, sample.value) for metric in actions_metrics([]) for sample in metric.samples
    ]
    assert {name for name, _, _ in samples} == {
        "shithub_actions_runner_registrations_total",
        "shithub_actions_runner_heartbeats_total",
        "shithub_actions_runner_jwt_total",
        "shithub_actions_jobs_cancelled_total",
        "shithub_actions_concurrency_queued_total",
        "shithub_actions_log_scrub_replacements_total",
        "shithub_actions_runs_pruned_total",
        "shithub_actions_step_timeouts_total",
    }
    labels = {(name, tuple(found.items())) for name, found, _ in samples}
    assert labels == {
        ("shithub_actions_runner_registrations_total", ()),
        *(("shithub_actions_runner_heartbeats_total", (("result", word),)) for word in ("claimed", "no_job")),
        *(("shithub_actions_runner_jwt_total", (("result", word),)) for word in ("issued", "rejected", "replay")),
        *(("shithub_actions_jobs_cancelled_total", (("reason", word),)) for word in ("user", "concurrency", "timeout")),
        ("shithub_actions_concurrency_queued_total", ()),
        ("shithub_actions_log_scrub_replacements_total", (("location", "server"),)),
        *(("shithub_actions_runs_pruned_total", (("kind", word),)) for word in ("chunks", "blobs", "runs", "jwt_used")),
        ("shithub_actions_step_timeouts_total", ()),
    }
    assert {value for _, _, value in samples} == {0.0}


def test_a_stored_count_has_its_label():
    found = list(actions_metrics([("actions_jwt", "replay", 3.0), ("other", "", 9.0)]))
    values = {tuple(sample.labels.values()): sample.value for metric in found for sample in metric.samples}
    assert values["replay",] == 3.0


def test_names_fit_their_column():
    assert all(len(counter.stored) <= 40 for counter in ACTIONS_COUNTERS.values())
