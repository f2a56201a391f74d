"""Lists: newest first, by cursor, filtered by what is declared and nothing else; what is not understood is refused."""

import base64
import contextlib
import hashlib
import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core import signing
from django.db import connection
from django.test.utils import CaptureQueriesContext

from benchmarks.tenants import fill
from orchestrator.services import cancellation
from runtime_jobs.models import Job
from tests.api_client import refused
from tests.factories import ALICE, COMMIT, ProjectFactory, submitted

pytestmark = pytest.mark.django_db
JOBS = "/v1/runtime/jobs"


@pytest.fixture
def project(organization):
    return organization.projects.get()


def ids(response):
    assert response.status_code == 200, response.content
    return [row["job_id"] for row in response.json()["results"]]


def pages(caller, query=""):
    path = f"{JOBS}?{query}"
    while path:
        answer = caller.get(path).json()
        yield [row["job_id"] for row in answer["results"]]
        path = answer["next"]


def test_pages_show_every_job_once_newest_first_while_others_come(alice, project):
    there = [submitted(project).job_ulid for _ in range(5)]
    seen = []
    for page in pages(alice, "limit=2"):
        seen += page
        submitted(project)
    assert seen == there[::-1]


def test_the_page_before_is_the_page_before(alice, project):
    for _ in range(5):
        submitted(project)
    first = alice.get(f"{JOBS}?limit=2").json()
    second = alice.get(first["next"]).json()
    assert alice.get(second["previous"]).json()["results"] == first["results"]
    assert first["previous"] is None


def test_a_list_counts_nothing_and_skips_nothing(alice, project):
    for _ in range(3):
        submitted(project)
    following = alice.get(f"{JOBS}?limit=1").json()["next"]
    with CaptureQueriesContext(
        connection,
    ) as queries:
        alice.get(following)
    statements = [query["sql"].upper() for query in queries]
    of_the_list = [sql for sql in statements if 'FROM "RUNTIME_JOBS"' in sql]
    assert len(of_the_list) == 1
    assert "COUNT(" not in of_the_list[0]
    assert not any("OFFSET" in sql for sql in statements)
    assert len(statements) <= 3 + 3  # and the place, the workers and the limits of those that wait


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("org_slug=sandtrace", 3), ("org_slug=other", 0), ("project_slug=web", 2), ("project_slug=api", 1),
        ("status=queued", 2), ("status=canceled", 1), ("status=uploaded", 0), ("trigger_kind=manual", 3),
        ("trigger_kind=pull_request", 0), (f"git_commit={COMMIT}", 2), (f"git_commit={'d' * 40}", 1), ("git_commit=HEAD", 0),
        ("created_after=2020-01-01T00:00:00Z", 3), ("created_before=2020-01-01T00:00:00Z", 0),
        ("created_after=2020-01-01T00:00:00%2B02:00", 3), ("project_slug=web&status=canceled", 0), ("limit=200", 3),
    ],
)  # fmt: skip
def test_a_filter_filters(alice, organization, project, query, shown):
    submitted(project)
    submitted(project, git_commit="d" * 40)
    other = submitted(ProjectFactory(organization=organization, slug="api"))
    cancellation.cancel(job_ulid=other.job_ulid, actor=ALICE, deadline_seconds=30)
    assert len(ids(alice.get(f"{JOBS}?{query}"))) == shown


@pytest.mark.parametrize("query", ["", "&org_slug={org}"])
def test_a_page_of_who_has_most_jobs_walks_past_nobody_elses(alice, organization, query):
    """Though nearly every row is of that tenant, and the newest ones are not."""
    for org, jobs in ((organization.slug, 3000), ("other", 200), ("another", 200)):
        fill(org, "shared-linux", jobs)
    with CaptureQueriesContext(connection) as queries:
        alice.get(f"/v1/jobs?limit=2{query.format(org=organization.slug)}")
    [page] = [query["sql"] for query in queries if 'FROM "runtime_jobs"' in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {page}")
        assert "jobs_of_organization" in str(cursor.fetchall())


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=-1", "limit=201", "limit=1e2", "limit=abc", "limit=", "limit=1.0", "limit=%201", "limit=%2B1",
        "limit=0000000019999", "limit=" + "9" * 5000, "limit=%C2%B2", "limit=%D9%A3", "limit=1&limit=2", "limit=0x1",
        "offset=1000000000000", "page=2", "page_size=1000", "ordering=-fence", "format=xml", "format=json", "x=1", "=1",
        "status=nothing", "status=leased", "status=QUEUED", "status=", "status=queued&status=failed", "org_slug=",
        "org_slug=%00", "git_commit=%00", "status__regex=(a%2B)%2B$", "org_slug__startswith=s", "job__org__token_hash=x",
        "leases__lease_ulid__startswith=rtl_", "state=queued", "id=1", "trigger_kind=cron", "trigger_kind=",
        "created_after=", "cursor=", "cursor=x", "cursor=%00", "cursor=%F0%9F%92%A9", "cursor=" + "x" * 9000,
        "&".join(f"a{n}=1" for n in range(150)), "&".join(f"a{n}=1" for n in range(300)), "a;b=1", "status[]=queued",
    ],
    ids=lambda query: query[:40],
)  # fmt: skip
def test_a_query_that_is_not_understood_is_refused(alice, query):
    response = refused(
        lambda: alice.get(f"{JOBS}?{query}"), 400, "invalid" if query.count("&") > 200 else "invalid_query"
    )
    assert query.count("&") > 200 or response["errors"]


@pytest.mark.parametrize(
    "time",
    [
        "yesterday", "2020-01-01", "2020-01-01T00:00:00", "2020-02-30T00:00:00Z", "2020-13-01T00:00:00Z", "20200101T000000Z",
        "0001-01-01T00:00:00%2B23:59", "9999-12-31T23:59:59-23:59", "99999-01-01T00:00:00Z", "2020-01-01T24:00:01Z",
        "2020-01-01T00:00:00%2B24:00", "2020-01-01 00:00:00Z", "%D9%A2020-01-01T00:00:00Z", "1577836800", "999",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["created_after", "created_before"])
def test_a_time_is_rfc_3339(alice, name, time):
    document = refused(lambda: alice.get(f"{JOBS}?{name}={time}"), 400, "invalid_query")
    assert set(document["errors"]) == {name}


@pytest.mark.parametrize(
    "time", ["2020-01-01T00:00:00-23:59", "2020-01-01t00:00:00.123456789z", "0001-01-01T00:00:00Z"]
)
def test_any_offset_of_rfc_3339_is_understood(alice, project, time):
    job = submitted(project)
    assert ids(alice.get(f"{JOBS}?created_after={time}")) == [job.job_ulid]
    assert ids(alice.get(f"{JOBS}?created_before={time}")) == []


@pytest.mark.parametrize(
    "query", ["org_slug=" + "x" * 60_000, "git_commit='%20OR%201=1--", "project_slug=%25"], ids=len
)
def test_an_odd_value_finds_nothing(alice, project, query):
    submitted(project)
    assert ids(alice.get(f"{JOBS}?{query}")) == []


@pytest.mark.parametrize("path", ["", "/cancel", "/retry", "/events", "/logs"])
@pytest.mark.parametrize("query", ["status=failed", "limit=5", "x=1", "org_slug=sandtrace"])
def test_what_belongs_to_lists_is_unknown_elsewhere(alice, project, path, query):
    job = submitted(project)
    method = "POST" if path in {"/cancel", "/retry"} else "GET"
    refused(lambda: alice.call(method, f"{JOBS}/{job.job_ulid}{path}?{query}"), 400, "invalid_query")


def test_a_submit_has_no_query(alice):
    refused(lambda: alice.post(f"{JOBS}?status=queued"), 400, "invalid_query")


def test_a_cursor_counts_only_for_the_list_it_was_made_for(alice, project):
    for _ in range(3):
        submitted(project)
    cursor = alice.get(f"{JOBS}?limit=1&status=queued").json()["next"].partition("cursor=")[2].partition("&")[0]
    assert len(ids(alice.get(f"{JOBS}?status=queued&cursor={cursor}"))) == 2
    for query in ("", "status=failed&", "status=queued&project_slug=web&", "org_slug=sandtrace&"):
        refused(lambda query=query: alice.get(f"{JOBS}?{query}cursor={cursor}"), 400, "invalid_query")
    refused(lambda: alice.get(f"{JOBS}?status=queued&cursor={cursor[:-1]}x"), 400, "invalid_query")


@pytest.mark.parametrize("place", [[0, False, "x"], [10**12, False, "1"], [], [1], None, "x", [0, 0, None]])
def test_a_cursor_cannot_be_forged(alice, place):
    refused(lambda: alice.get(f"{JOBS}?cursor={signing.dumps(place)}"), 400, "invalid_query")


@pytest.mark.parametrize("after", ["-1", "x", "", "1.5", "%C2%B2", "9" * 19, "9" * 5000, "1&after=2"])
def test_events_after_what_is_no_number_are_refused(alice, project, after):
    job = submitted(project)
    refused(lambda: alice.get(f"{JOBS}/{job.job_ulid}/events?after={after}"), 400, "invalid_query")


def test_events_come_after_a_number_and_not_again(alice, project):
    job = submitted(project)
    cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30)
    path = f"{JOBS}/{job.job_ulid}/events"
    whole = alice.get(path).json()
    assert [event["seq"] for event in whole["results"]] == [1, 2]
    assert whole["next_after"] is None
    assert [event["seq"] for event in alice.get(f"{path}?after=1").json()["results"]] == [2]
    assert alice.get(f"{path}?after={'9' * 18}").json()["results"] == []


@pytest.mark.parametrize("follow", ["2", "true", "", "1&follow=0"])
def test_logs_are_followed_or_not(alice, project, follow):
    job = submitted(project)
    refused(lambda: alice.get(f"{JOBS}/{job.job_ulid}/logs?follow={follow}"), 400, "invalid_query")


def test_a_job_of_another_type_is_not_in_the_runtime_list(alice, project):
    job = submitted(project)
    Job.objects.filter(pk=job.pk).update(job_type="steps")
    assert ids(alice.get(JOBS)) == []
    refused(lambda: alice.get(f"{JOBS}/{job.job_ulid}"), 404, "not_found")


def cursor_of(answer) -> str:
    return parse_qs(urlsplit(answer.json()["next"]).query)["cursor"][0]


def test_a_cursor_shows_no_number_of_a_row(alice, project):
    """Two of them, an hour apart, would show how many jobs all tenants have submitted in between."""
    for _ in range(2):
        last = submitted(project)
    cursor = cursor_of(alice.get(f"{JOBS}?limit=1"))
    readable = [cursor.encode()]
    for part in re.split("[:.]", cursor):
        with contextlib.suppress(ValueError):
            readable.append(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    assert not [text for text in readable if json.dumps(str(last.pk)).encode() in text]


def test_a_cursor_of_an_older_release_is_refused_in_words(alice, project):
    """Its form until 8637103: signed, and readable."""
    salt = hashlib.sha256(repr((JOBS, [])).encode()).hexdigest()
    old = signing.dumps([0, False, "5"], salt=salt)
    problem = refused(lambda: alice.get(f"{JOBS}?cursor={old}"), 400, "invalid_query")
    assert "of an older release. Start without a cursor." in problem["errors"]["cursor"][0]


def test_a_cursor_outlives_a_change_of_the_secret_key(alice, project, settings):
    for _ in range(2):
        submitted(project)
    cursor = cursor_of(alice.get(f"{JOBS}?limit=1"))
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another"
    assert len(ids(alice.get(f"{JOBS}?cursor={cursor}"))) == 1
    settings.SECRET_KEY_FALLBACKS = []
    refused(lambda: alice.get(f"{JOBS}?cursor={cursor}"), 400, "invalid_query")
