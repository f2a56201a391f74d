"""A round of the clock in which something fails: one job's trouble is its own, a database that is away ends the round."""

from datetime import timedelta

import pytest
from django.db import InterfaceError, OperationalError
from psycopg.errors import AdminShutdown, DeadlockDetected, LockNotAvailable

from leases import lanes
from leases.limits import Subject
from leases.models import Limit, LimitScope
from orchestrator import lifecycle, sweeps
from orchestrator.clock import Clock
from orchestrator.scheduling import sweep_scheduling
from orchestrator.tally.counting import Tally
from runtime_jobs.clock import database_time
from runtime_jobs.trouble import is_away
from tests.factories import OPERATOR

pytestmark = pytest.mark.django_db
NAMES = ["rtj_a", "rtj_b", "rtj_c"]


def failing(error, cause=None):
    """An act that fails at the first job."""
    tried = []

    def act(*, job_ulid, now):
        tried.append(job_ulid)
        if len(tried) == 1:
            raise error from cause
        return job_ulid

    return act, tried


def test_one_job_s_trouble_is_told_and_the_others_have_their_turn(caplog):
    act, tried = failing(OperationalError("deadlock"), DeadlockDetected())
    assert sweeps._each(act, NAMES, None) == 2
    assert tried == NAMES
    assert "act of rtj_a failed" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("error", "cause"), [(OperationalError("gone"), AdminShutdown()), (InterfaceError("closed"), None)]
)
def test_a_database_that_is_away_ends_the_round(error, cause, caplog):
    act, tried = failing(error, cause)
    with pytest.raises(type(error)):
        sweeps._each(act, NAMES, None)
    assert tried == NAMES[:1]
    assert caplog.text == ""


def test_numbers_that_cannot_be_counted_end_no_round_but_a_lost_connection_does(monkeypatch, caplog):
    def advance(_self):
        raise OperationalError("statement timeout") from cause

    monkeypatch.setattr(Tally, "advance", advance)
    cause: Exception = DeadlockDetected()
    Tally().go_on()
    assert "the metrics were not counted" in caplog.text
    cause = AdminShutdown()
    with pytest.raises(OperationalError):
        Tally().go_on()


def test_the_clock_outlives_a_round_that_failed(monkeypatch, caplog):
    def round_(_self):
        raise OperationalError("gone")

    monkeypatch.setattr(Clock, "round", round_)
    monkeypatch.setattr("orchestrator.clock.connection.close", lambda: None)
    Clock(period=0.01).run(once=True)
    assert "clock round failed: OperationalError" in caplog.text


def test_what_is_no_trouble_with_the_connection_is_not_away():
    assert not is_away(ValueError())
    assert is_away(OperationalError())


def test_a_piece_that_cannot_be_done_keeps_no_other_from_its_turn(monkeypatch, caplog):
    subject = Subject(LimitScope.POOL, "", "shared-linux")
    lifecycle.pause(subject=subject, until=database_time() + timedelta(hours=1), by=OPERATOR, reason="test")
    Limit.objects.update(until=database_time())

    def locked():
        raise OperationalError("lock timeout") from LockNotAvailable()

    monkeypatch.setattr(lanes, "due", locked)
    sweep_scheduling()
    assert not Limit.objects.exists()
    assert "locked of {} failed" in caplog.text
