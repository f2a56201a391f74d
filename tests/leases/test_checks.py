"""Settings that make no sense are refused at the start."""

import pytest

from leases.checks import timings


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("HEARTBEAT_INTERVAL_SECONDS", 40, "leases.E001"),
        ("LEASE_TTL_SECONDS", 60, "leases.E001"),
        ("ACKNOWLEDGE_WITHIN_SECONDS", 0, "leases.E002"),
        ("CANCEL_DEADLINE_SECONDS", 0, "leases.E002"),
    ],
)
def test_a_bad_timing_is_named(settings, name, value, code):
    setattr(settings, name, value)
    assert [problem.id for problem in timings()] == [code]


def test_the_defaults_make_sense():
    assert timings() == []
