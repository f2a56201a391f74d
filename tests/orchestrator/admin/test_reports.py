"""The page of reports: their outcome, their job, and nothing that could be changed."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from orchestrator.results import names
from orchestrator.results.models import Report, ReportResult
from tests.factories import ProjectFactory, submitted
from tests.orchestrator.admin.pages import address

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 17, 20, 0, tzinfo=UTC)
LIST = address(Report, "changelist")


@pytest.fixture
def report():
    project = ProjectFactory()
    return Report.objects.create(
        project=project, job=submitted(project), branch=names.get_or_create_branch(project, "feature/x"),
        testbed=names.get_or_create_testbed(project, "box"), start_time=START, end_time=START,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (None, "none yet"),
        ({"metric_count": 1234, "duration_seconds": 61, "start_time": START, "end_time": START}, "1,234"),
        ({"error": "Result 1 of 1 is not in a format"}, "unreadable"),
    ],
)
def test_list_and_page_display_the_outcome(olga, report, outcome, text):
    if outcome is not None:
        ReportResult.objects.create(report=report, **outcome)
    page = olga.get(LIST).content.decode()
    assert text in page
    assert report.job_id in page
    assert "feature/x" in page
    assert olga.get(address(Report, "change", report.pk)).status_code == 200


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize("column", ["uuid", "job_id"])
def test_a_report_is_found_by_its_uuid_and_by_its_job(olga, report, column, found):
    other = {"uuid": str(uuid4()), "job_id": "rtj_00000000000000000000000000"}
    text = str(getattr(report, column)) if found else other[column]
    page = olga.get(f"{LIST}?q={text}").content.decode()
    assert ("feature/x" in page) is found


def test_other_words_find_nothing(olga, report):
    assert "feature/x" not in olga.get(f"{LIST}?q=feature").content.decode()


def test_nothing_can_be_changed(olga, report):
    assert olga.get(f"{LIST}add/").status_code == 403
    assert olga.post(address(Report, "delete", report.pk), {"post": "yes"}).status_code == 403
    assert Report.objects.count() == 1
