"""No limit of the suite is so short that a loaded machine exceeds it."""

import inspect

import hypothesis
import pytest
from django.db import connection

from tests.live_server import eventually


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"])
def test_sessions_of_the_suite_wait_longer_than_those_of_the_product(name):
    with connection.cursor() as cursor:
        cursor.execute("SELECT setting::integer FROM pg_settings WHERE name = %s", [name])
        assert cursor.fetchone()[0] >= 60_000


def test_examples_have_no_deadline():
    assert hypothesis.settings.default.deadline is None


def test_a_server_has_a_minute_to_start():
    """A server once had 15 seconds, which a loaded machine exceeded."""
    assert inspect.signature(eventually).parameters["seconds"].default >= 60
