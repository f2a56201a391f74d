"""/metrics: the important numbers, from one bounded query, for permitted callers, with a closed set of labels."""

import re

import psycopg
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from benchmarks.tenants import fill
from leases.models import Lease
from orchestrator.http.observability import job_metrics, metrics
from tests.api_client import Caller, problem_of
from tests.db_snapshot import nothing_lost
from tests.factories import api_token, claimed, scheduler_beat, submitted
from tests.live_server import eventually

pytestmark = pytest.mark.django_db


def scrape(**headers):
    metrics.database.forget()
    response = Caller().get("/metrics", **headers)
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain; version=")
    return response.content.decode()


def value(text, name):
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return None if found is None else float(found[1])


def test_it_says_how_the_queue_stands(organization):
    for _ in range(3):
        submitted(organization.projects.get())
    claimed()
    submitted(organization.projects.get(), depends_on=(claimed(acknowledge=True).job,))
    scheduler_beat(timezone.now())
    text = scrape()
    assert value(text, "orchestrator_database_up") == 1
    assert value(text, 'orchestrator_jobs{state="queued"}') == 1
    assert value(text, 'orchestrator_jobs{state="blocked"}') == 1
    assert value(text, 'orchestrator_jobs{state="starting"}') == 1
    assert value(text, 'orchestrator_jobs{state="leased"}') == 1
    assert value(text, "orchestrator_open_leases") == Lease.objects.count() == 2
    assert 0 <= value(text, "orchestrator_oldest_queued_seconds") < 60
    assert 0 <= value(text, "orchestrator_clock_beat_age_seconds") < 60


def test_an_empty_installation_has_numbers_too(db):
    text = scrape()
    assert value(text, 'orchestrator_jobs{state="queued"}') == 0
    assert value(text, "orchestrator_oldest_queued_seconds") == 0
    assert value(text, "orchestrator_clock_beat_age_seconds") is None, "no clock has ever run: there is no age"


@pytest.mark.django_db(transaction=True)
def test_it_says_how_long_the_oldest_snapshot_is_open(database_url):
    """Also of another role, whose transactions have no time for this one. Vacuums hold nothing back."""
    name = "orchestrator_oldest_snapshot_seconds"
    submitted()
    with psycopg.connect(database_url, user="postgres") as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        assert value(scrape(), name) < 1, "it has everything"
        submitted()
        assert 0 < value(scrape(), name) < 60
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(1.1)")
        assert 1.1 <= value(scrape(), name) < 60
    submitted()
    eventually(lambda: value(scrape(), name) < 1)


def test_a_query_that_takes_too_long_says_nothing_about_the_database(monkeypatch):
    """PostgreSQL ends it after two seconds. Operators are woken up when the database is down."""
    monkeypatch.setattr(metrics, "_QUERY", "SELECT pg_sleep(60 + 0 * %(limit)s)")
    text = scrape()
    assert value(text, "orchestrator_metrics_queries_failed") == 1
    assert value(text, "orchestrator_database_up") == 1


def test_it_asks_three_times_with_a_limit_of_time_and_of_rows(organization):
    with CaptureQueriesContext(connection) as queries, nothing_lost():
        scrape()
    asked = [query["sql"] for query in queries if "suite.images" not in query["sql"]]
    assert len([sql for sql in asked if "SELECT" in sql]) == 4  # one of them asks for the tenants with a label
    assert len([sql for sql in asked if "statement_timeout" in sql]) == 3
    assert any(f"LIMIT {metrics.MAX_COUNTED_JOBS}" in sql for sql in asked)
    assert any(f"LIMIT {job_metrics.MAX_JOBS}" in sql for sql in asked)


def test_who_asks_often_gets_what_was_found_before(organization, django_assert_num_queries):
    scrape()
    with django_assert_num_queries(0):
        assert Caller().get("/metrics").status_code == 200


def test_each_look_goes_by_an_index(organization):
    """With sequential scans forbidden the planner uses an index for each part, also at a million rows.

    Some thousand jobs wait, because in an empty table any index is as good as another.
    """
    fill(organization.slug, "shared-linux", 3000)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {metrics._QUERY}", {"limit": metrics.MAX_COUNTED_JOBS})
        plan = "\n".join(line for (line,) in cursor.fetchall())
    for index in ("jobs_held", "one_open_lease_per_job", "jobs_queued_by_age", "events_by_transaction"):
        assert index in plan, plan
    assert "Seq Scan on runtime_jobs" not in plan


def test_requests_are_counted_by_route_method_and_status(organization, alice):
    job = submitted(organization.projects.get())
    label = 'orchestrator_requests_total{method="GET",route="/v1/runtime/jobs/<job_id>",status="200"}'
    before = value(scrape(), label) or 0
    alice.get(f"/v1/runtime/jobs/{job.job_ulid}")
    text = scrape()
    assert value(text, label) == before + 1
    assert value(text, 'orchestrator_request_seconds_count{method="GET",route="/v1/runtime/jobs/<job_id>"}') >= 1


def test_no_caller_invents_a_label(organization, alice, wendy):
    for n in range(20):
        alice.get(f"/nowhere/{n}")
        alice.call(f"METHOD{n}", f"/v1/runtime/jobs/{n}")
        wendy.post(f"/v1/runtime/leases/rtl_{n}/heartbeat")
    text = scrape()
    assert "nowhere" not in text
    assert "METHOD" not in text
    assert "rtl_" not in text
    assert value(text, 'orchestrator_requests_total{method="OTHER",route="unmatched",status="404"}') >= 20
    assert (
        value(
            text,
            'orchestrator_requests_total{method="POST",route="/v1/runtime/leases/<lease_id>/heartbeat",status="409"}',
        )
        >= 20
    )


def test_without_a_token_of_its_own_only_this_machine_may_ask(organization, settings):
    caller = Caller(api_token(organization))
    for address in ("192.0.2.1", "10.0.0.1", "::2", ""):
        response = caller.http.get("/metrics", headers=caller.headers, REMOTE_ADDR=address)
        assert problem_of(response)["code"] == "unauthenticated", "the numbers are those of all tenants"
    assert Caller().http.get("/metrics", REMOTE_ADDR="::1").status_code == 200
    for relayed in ({"X-Forwarded-For": "127.0.0.1"}, {"Forwarded": "for=127.0.0.1"}):
        assert Caller().get("/metrics", **relayed).status_code == 401, "a proxy here makes everybody look local"
    settings.BEHIND_PROXY = True
    assert Caller().get("/metrics").status_code == 401


def test_with_a_token_of_its_own_whoever_has_it_may_ask(organization, settings):
    settings.METRICS_TOKEN = "s3cret-of-prometheus"
    assert value(scrape(Authorization="Bearer s3cret-of-prometheus"), "orchestrator_database_up") == 1
    for sent in (
        "",
        "Bearer",
        "Bearer ",
        "Bearer s3cret",
        "s3cret-of-prometheus",
        f"Bearer {api_token(organization)}",
        "Bearer é",
    ):
        assert Caller().get("/metrics", Authorization=sent).status_code == 401


def test_health_needs_no_token_and_tells_nothing_of_anybody(organization):
    stranger = Caller()
    assert stranger.get("/healthz").json() == {"status": "alive"}
    assert stranger.get("/readyz").json() == {"status": "unready", "wrong": ["clock"]}
    scheduler_beat(timezone.now())
    assert stranger.get("/readyz").json() == {"status": "ready", "wrong": []}
    assert stranger.call("HEAD", "/healthz").status_code == 200


def test_a_clock_that_beat_long_ago_is_silent(db, settings):
    scheduler_beat(timezone.now())
    settings.CLOCK_SILENT_AFTER_SECONDS = 0
    assert Caller().get("/readyz").json()["wrong"] == ["clock"]


def test_liveness_asks_the_database_nothing(django_assert_num_queries, db):
    with django_assert_num_queries(0):
        assert Caller().get("/healthz").status_code == 200
