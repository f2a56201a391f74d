"""The page of billed minutes: read-only, filtered, with a download."""

import csv
import io

import pytest

from orchestrator.admin.tenants import usage
from runtime_jobs.models import UsageRecord
from tests.orchestrator.admin.conftest import client_of, person
from tests.orchestrator.admin.pages import address
from tests.orchestrator.protocols.native.test_usage import record

pytestmark = pytest.mark.django_db
LIST = address(UsageRecord, "changelist")


def rows(response) -> list[dict[str, str]]:
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert "attachment" in response["Content-Disposition"]
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def test_the_list_displays_records_and_their_job(olga):
    record(2)
    page = olga.get(LIST).content.decode()
    assert "sandtrace" in page
    assert "rtj_01kkygkagq0jk17bx6y1w8c3df" in page


def test_the_download_has_the_rows_that_the_filters_select(olga):
    record(1)
    record(2, org="other")
    assert [(row["org_slug"], row["minute"]) for row in rows(olga.get(f"{LIST}csv"))] == [
        ("other", "2"), ("sandtrace", "1"),
    ]  # fmt: skip
    assert [row["org_slug"] for row in rows(olga.get(f"{LIST}csv?org_slug=other"))] == ["other"]


def test_the_button_keeps_the_filters(olga):
    assert f"{LIST}csv?org_slug=other" in olga.get(f"{LIST}?org_slug=other").content.decode()


def test_a_download_that_would_be_cut_is_refused(olga, monkeypatch):
    monkeypatch.setattr(usage, "MAX_ROWS", 1)
    record(1)
    assert len(rows(olga.get(f"{LIST}csv"))) == 1
    record(2)
    response = olga.get(f"{LIST}csv?org_slug=sandtrace", follow=True)
    assert "more than 1 records" in response.content.decode()


def test_only_viewers_of_usage_may_download(db):
    record(1)
    vera = client_of(person("vera2", "runtime_jobs.view_job"))
    assert vera.get(f"{LIST}csv").status_code == 403
    uma = client_of(person("uma", "runtime_jobs.view_usagerecord"))
    assert len(rows(uma.get(f"{LIST}csv"))) == 1


def test_nothing_can_be_changed(olga):
    found = record(1)
    assert olga.get(f"{LIST}add/").status_code == 403
    assert olga.post(address(UsageRecord, "delete", found.pk), {"post": "yes"}).status_code == 403
    assert UsageRecord.objects.count() == 1
