"""The conclusion of a run, by a table."""

import pytest

from runtime_jobs.rollup import roll_up


@pytest.mark.parametrize(
    ("conclusions", "expected"),
    [
        ([], "failure"),
        (["success"], "success"),
        (["success", "skipped", "neutral"], "success"),
        (["skipped"], "success"),
        ([None], None),
        (["failure", None], None),
        ([None, "cancelled"], None),
        (["success", "failure"], "failure"),
        (["timed_out", "failure"], "timed_out"),
        (["failure", "timed_out"], "failure"),
        (["action_required", "failure"], "action_required"),
        (["cancelled", "success"], "cancelled"),
        (["cancelled", "failure"], "failure"),
        (["cancelled", "timed_out", "failure"], "timed_out"),
        (["skipped", "cancelled", "neutral"], "cancelled"),
    ],
)
def test_the_first_failure_decides(conclusions, expected):
    assert roll_up(conclusions) == expected
