"""Every index of the three tables that each lifecycle writes has a query that needs it, and serves that query."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib import admin
from django.db import connection, models
from django.db.models import Q
from django.db.models.fields.json import KT
from django.test import RequestFactory
from django.utils import timezone

from config.paths import BASE_DIR
from leases.models import Lease
from orchestrator.admin.dashboard import queries
from orchestrator.admin.jobs.filters import (
    AttemptFilter,
    CancelFilter,
    FailureReasonFilter,
    FinishedFilter,
    StatusFilter,
)
from orchestrator.http.observability import metrics
from orchestrator.incidents.breakers import ENDED
from orchestrator.limits import quota_use
from orchestrator.protocols.native.jobs.filters import RuntimeJobFilters
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.models.jobs import KEY_OF_QUEUED, IndexPart
from runtime_jobs.states import FINAL_STATES, LEASED_STATES
from tests.factories import submitted
from tests.shared_rows import module_transaction
from tests.tampering import tamper

pytestmark = pytest.mark.django_db

TABLES = ("runtime_jobs", "runtime_worker_leases", "runtime_job_events")
ROWS = 6000
ONE = f"rtj_{5000:026}"

FILL = f"""INSERT INTO runtime_jobs
SELECT filled.*
  FROM (SELECT n, 'rtj_' || lpad(n::text, 26, '0') AS ulid,
               CASE WHEN n % 100 = 1 THEN 'blocked' WHEN n % 100 = 2 THEN 'executing' WHEN n % 100 < 8 THEN 'queued'
                    WHEN n % 20 = 0 THEN 'failed' ELSE 'succeeded' END AS state
          FROM generate_series(1, {ROWS}) n) numbered
 CROSS JOIN LATERAL json_populate_record((SELECT j FROM runtime_jobs j LIMIT 1), json_build_object(
           'id', 1000000 + n, 'job_ulid', ulid, 'root_job_ulid', ulid, 'org_slug', 'org-' || n % 50,
           'project_slug', 'project-' || n % 5, 'git_commit', md5((n / 10)::text), 'pool', 'pool-' || n % 3,
           'lane_id', n % 200, 'created_at', now() - n * interval '1 s', 'state', numbered.state,
           'concurrency_key', CASE WHEN n % 100 = 3 THEN 'key-' || n % 7 ELSE '' END,
           'finished_at', CASE WHEN numbered.state IN ('succeeded', 'failed') THEN now() - n * interval '1 s' END,
           'failure_reason', CASE WHEN numbered.state = 'failed' THEN 'timed_out' END,
           'failure_class', CASE WHEN numbered.state = 'failed' THEN 'policy' END,
           'ingest_run_id', CASE WHEN numbered.state = 'succeeded' THEN 'run_' || n END,
           'retry_of_job_ulid', CASE WHEN n % 40 = 0 THEN 'rtx' || substr(ulid, 4) END,
           'correlation_id', 'trace-' || n, 'job_type', CASE WHEN n / 7 % 10 = 0 THEN 'scan' ELSE 'runtime' END)) AS filled;
INSERT INTO runtime_job_events (event_ulid, job_ulid, seq, event_type, actor_kind, actor_id, payload_json, created_at,
                                org_slug, job_type, correlation_id, to_state, fence, prev_hash, hash)
SELECT 'evt' || substr(job_ulid, 4), job_ulid, 9, 'job.x', 'client', 'x', '{{}}', created_at, org_slug, job_type, 'x',
       CASE WHEN finished_at IS NOT NULL THEN state END, 0, '', '' FROM runtime_jobs;
INSERT INTO runtime_worker_leases (lease_ulid, job_ulid, worker_id, pool, state, fence, session, ttl_seconds,
                                   heartbeat_interval_seconds, acknowledge_within_seconds, leased_at, acknowledged_at,
                                   expires_at, completed_at)
SELECT 'rtl' || substr(job_ulid, 4), job_ulid, 'wrk_' || id % 40, pool,
       CASE WHEN finished_at IS NULL THEN 'active' ELSE 'completed' END, 1, '', 1, 1, 1, created_at, created_at,
       now(), finished_at FROM runtime_jobs WHERE state NOT IN ('queued', 'blocked');
ANALYZE runtime_jobs; ANALYZE runtime_job_events; ANALYZE runtime_worker_leases;
"""

JOBS = Job.objects
NEWEST = JOBS.order_by("-id")
QUERIES: dict[str, models.QuerySet | str] = {
    # runtime_jobs
    "runtime_jobs_pkey": JOBS.filter(pk=1005000),
    "runtime_jobs_job_ulid_key": JOBS.filter(job_ulid=ONE),
    "one_job_per_ingest_run_id": "SELECT id FROM runtime_jobs WHERE ingest_run_id = 'run_5001'",
    "one_retry_per_job": JOBS.filter(retry_of_job_ulid=f"rtx{ONE[3:]}"),
    "jobs_of_organization": NEWEST.filter(org_slug="org-7")[:50],
    "jobs_of_project_by_key": NEWEST.filter(org_slug="org-7", project_slug="project-2")[:50],
    "jobs_of_commit": JOBS.filter(org_slug="org-7", git_commit="cfcd208495d565ef66e7dff9f98764da"),
    "jobs_ended_by_status": JOBS.with_status("failed").order_by("-created_at")[:10],
    "jobs_ended_by_creation": NEWEST.of_organizations(["org-7"])
    .filter(created_at__lt=timezone.now() - timedelta(seconds=ROWS - 60))
    .through_partial_indexes()[:51],
    "jobs_queued_by_age": "SELECT created_at FROM runtime_jobs WHERE state = 'queued' ORDER BY created_at LIMIT 1",
    "jobs_in_claim_order": (
        "SELECT id FROM runtime_jobs WHERE state = 'queued' AND pool = 'pool-1'"
        " ORDER BY priority DESC, created_at, id LIMIT 5"
    ),
    "jobs_of_lane": "SELECT id FROM runtime_jobs WHERE state = 'queued' AND lane_id = 7 AND id >= 1 ORDER BY id LIMIT 1",
    "jobs_blocked": JOBS.filter(org_slug="org-1", state="blocked"),
    "jobs_held": JOBS.filter(state__in=LEASED_STATES),
    "jobs_settling": JOBS.filter(state="lost", late_result_at__lte=timezone.now()),
    "jobs_of_concurrency_key": JOBS.filter(org_slug="org-3", concurrency_key="key-3").exclude(state__in=FINAL_STATES),
    "jobs_ended": JOBS.filter(org_slug="org-7", job_type="runtime", state__in=ENDED).order_by("-finished_at")[:5],
    "jobs_cancel_requested": NEWEST.filter(cancel_requested_at__isnull=False)[:51],
    "jobs_retries": NEWEST.filter(attempt__gt=1)[:51],
    "jobs_redelivered": NEWEST.filter(fence__gt=1)[:51],
    "jobs_failed_lately": (
        "SELECT org_slug, job_type FROM runtime_jobs WHERE state = 'failed' AND finished_at > now() - interval '1 min'"
    ),
    "jobs_of_batch": JOBS.filter(batch=4711).order_by("id"),
    "jobs_of_hardware_spec": JOBS.alias(named=KT("spec__spec")).filter(job_type="oci", named="0190a5d4"),
    "jobs_of_root": JOBS.filter(root_job_ulid=ONE),
    "jobs_of_type_by_key": NEWEST.of_organizations(["org-7"]).filter(job_type="scan")[:51],
    "jobs_queued_of_type": JOBS.of_organizations(["org-7"]).first_by_key(
        [IndexPart(Q(job_type="runtime", state="queued"), KEY_OF_QUEUED)], size=51
    ),
    "jobs_ended_of_type": NEWEST.of_organizations(["org-7"]).filter(job_type="scan").with_status("failed")[:51],
    "jobs_ended_of_organization": NEWEST.of_organizations(["org-7"]).with_status("failed")[:51],
    "jobs_ended_of_correlation": NEWEST.of_organizations(["org-7"])
    .filter(correlation_id="trace-7")
    .through_partial_indexes()[:51],
    "jobs_queued_of_correlation": NEWEST.of_organizations(["org-7"])
    .filter(correlation_id="trace-7")
    .through_partial_indexes()[:51],
    "jobs_replayed": JOBS.filter(replay_of_job_ulid=ONE),
    # runtime_worker_leases
    "runtime_worker_leases_pkey": Lease.objects.filter(pk=1),
    "runtime_worker_leases_lease_ulid_key": Lease.objects.filter(lease_ulid=f"rtl{ONE[3:]}"),
    "one_lease_per_fence": Lease.objects.filter(job=ONE).order_by("-fence"),
    "one_open_lease_per_job": Lease.objects.open(),
    "leases_of_worker": "SELECT count(*) FROM runtime_worker_leases WHERE worker_id = 'wrk_7' AND status = 'open'",
    # runtime_job_events
    "runtime_job_events_pkey": JobEvent.objects.order_by("-id")[:50],
    "one_event_per_seq": JobEvent.objects.of(ONE),
    "one_final_event_per_job": "SELECT seq FROM runtime_job_events WHERE job_ulid = 'x' AND to_state = 'failed'",
    "events_by_transaction": (
        "SELECT id FROM runtime_job_events WHERE (xid, id) > ('1', 1) ORDER BY xid, id LIMIT 1000"
    ),
}
# They refuse a row. Their query may be served by another index as well.
RULES = {"one_final_event_per_job"}


@pytest.fixture
def audited():
    """The rows serve the planner only."""


@pytest.fixture(scope="module")
def _rows(django_db_setup, django_db_blocker):
    """The rows, made once: what a test changes is rolled back."""
    with module_transaction(django_db_blocker):
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            # Rows that earlier tests undid leave their indexes large, and the planner prefers smaller ones.
            for table in TABLES:
                cursor.execute(f"REINDEX TABLE {table}")
            submitted()
            for statement in FILL.split(";\n"):
                if statement.strip():
                    cursor.execute(statement)
        yield


@pytest.fixture
def filled(_rows, db):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")


def installed() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexname FROM pg_indexes WHERE tablename = ANY (%s)", [list(TABLES)])
        return {name for (name,) in cursor.fetchall()}


def plan(query: models.QuerySet | str) -> str:
    if not isinstance(query, str):
        return query.explain()
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {query}")
        return "\n".join(line for (line,) in cursor.fetchall())


def test_every_index_names_its_query_here_and_in_the_document():
    text = (BASE_DIR / "docs" / "schema.md").read_text()
    assert installed() == set(QUERIES)
    listed = text.partition("\nRemoved")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE)) == installed()


def test_each_index_serves_its_query(filled):
    wrong = {name: found for name, query in QUERIES.items() if name not in RULES and name not in (found := plan(query))}
    assert wrong == {}


def test_the_filters_and_counts_of_the_admin_read_the_rows_that_they_display(filled, monkeypatch):
    """Each of them scanned a large part of the table: those that match may all be old."""
    monkeypatch.setitem(FinishedFilter.hours, "1h", 1 / 60)  # all rows have ended within two hours
    for index, chosen in (
        ("jobs_cancel_requested", [(CancelFilter, "yes")]),
        ("jobs_retries", [(AttemptFilter, "retries")]),
        ("jobs_redelivered", [(AttemptFilter, "requeued")]),
        ("jobs_failed_lately", [(StatusFilter, "failed"), (FinishedFilter, "1h")]),
        ("jobs_failed_lately", [(FailureReasonFilter, "timed_out"), (FinishedFilter, "1h")]),
    ):
        jobs = NEWEST
        for kind, value in chosen:
            request, parameters = (
                RequestFactory().get("/", {kind.parameter_name: value}),
                {kind.parameter_name: [value]},
            )
            jobs = kind(request, parameters, Job, admin.site._registry[Job]).queryset(None, jobs)
        found = plan(jobs[:51])
        assert f"using {index} " in found or f"on {index} " in found, found
    sums = (
        Path(queries.__file__).with_name("sql") / "failures.sql",
        Path(quota_use.__file__).with_name("sql") / "quota_use.sql",
    )
    since = "now() - interval '1 min'"
    values = {
        "since": since,
        "max_count": "9",
        "max_starts": "9",
        "organizations": "ARRAY['org-7']",
        "types": "ARRAY['scan']",
    }
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_bitmapscan = off")  # which reads the table
    for file, index in zip(sums, ("jobs_failed_lately", "jobs_ended"), strict=True):
        found = plan(file.read_text() % values)
        assert re.search(rf"Index Only Scan (Backward )?using {index} ", found), found


def test_the_limits_that_block_jobs_are_found_by_an_index():
    """The scheduler looks for them each second, and each concurrency key and source address has a limit."""
    query = "FROM lane_limits WHERE waiting"
    assert query in (BASE_DIR / "orchestrator" / "core" / "sql" / "count.sql").read_text()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    assert "limits_waited_for" in plan(f"SELECT id {query}")


def test_a_job_is_found_by_its_idempotency_key_and_the_key_by_its_job(filled):
    """Also by a prepared statement, whose plan knows no values."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO idempotency_keys (principal, operation, key, fingerprint, result_id, created_at)"
            " SELECT 'token:' || id % 9, 'submit', 'key-' || id, '', job_ulid, created_at FROM runtime_jobs;"
            "ANALYZE idempotency_keys; SET LOCAL plan_cache_mode = force_generic_plan"
        )
        cursor.execute("PREPARE key_of (text) AS SELECT key FROM idempotency_keys WHERE result_id = $1 LIMIT 1")
    assert "idempotency_keys_by_result" in plan("EXECUTE key_of ('x')")
    for name in ("job_ulid", "root_job_ulid"):
        found = Job.objects.of_organizations(["org-7"]).of_idempotency_key("key-5000", name).order_by("-id")[:51]
        shown = plan(found)
        assert "idempotency_keys_by_key" in shown, shown
        assert {"job_ulid": "runtime_jobs_job_ulid_key", "root_job_ulid": "jobs_of_root"}[name] in shown, shown


def test_no_index_by_the_start_is_needed(filled):
    """Document 004 lists `{tenant, status, startedAt}`. No call filters or sorts by the start, and running jobs are few."""
    from orchestrator.protocols.stella.jobs.filters import OrchestrationJobFilters  # noqa: PLC0415 - reads the settings

    assert [name for name in OrchestrationJobFilters.base_filters if "start" in name.lower()] == []
    running = Job.objects.of_organizations(["org-7"]).with_status("running")
    shown = plan(running.filter(started_at__gt=timezone.now() - timedelta(days=1)).order_by("started_at")[:50])
    assert "jobs_held" in shown
    assert "Seq Scan" not in shown


def by_time(**times):
    """Return the query of the API's list of jobs of a project, org-7/project-3."""
    values = {name: value.isoformat() for name, value in times.items()}
    jobs = Job.objects.of_organizations(["org-7"]).order_by("-id")
    filters = RuntimeJobFilters({"project_slug": "project-3", **values}, queryset=jobs)
    assert filters.is_valid(), filters.errors
    return filters.qs


@pytest.mark.parametrize(
    ("after", "before"),
    [(None, ROWS - 500), (300, None), (3100, 3000), (None, 0)],  # in seconds before now; the oldest job is ROWS s old
)
def test_a_list_by_creation_finds_all_and_uses_an_index_with_the_time(filled, after, before):
    larger = "UPDATE runtime_jobs SET org_slug = 'org-' || 6 + id % 4, project_slug = 'project-' || 2 + id % 2"
    tamper("runtime_jobs", larger)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE runtime_jobs")
    times = {"created_after": after, "created_before": before}
    limits = {name: timezone.now() - timedelta(seconds=age) for name, age in times.items() if age is not None}
    found = by_time(**limits)
    jobs = Job.objects.filter(org_slug="org-7", project_slug="project-3")
    if after is not None:
        jobs = jobs.filter(created_at__gt=limits["created_after"])
    if before is not None:
        jobs = jobs.filter(created_at__lt=limits["created_before"])
    assert found.exists()
    assert list(found.values_list("pk", flat=True)) == list(jobs.order_by("-id").values_list("pk", flat=True))
    if before != 0:  # which excludes nothing, so another index is as good
        shown = plan(found[:51])
        assert re.search(r"jobs_ended_by_creation  .*\n +Index Cond: .*org_slug.*created_at ", shown), shown
        assert "Seq Scan" not in shown


@pytest.mark.parametrize(
    ("status", "indexes"),
    [
        ("queued", {"jobs_blocked", "jobs_held"}),
        ("running", {"jobs_held", "jobs_settling"}),
        ("failed", {"jobs_ended_by_status"}),
        ("canceled", {"jobs_ended_by_status"}),
    ],
)
def test_a_list_by_status_uses_partial_indexes(filled, status, indexes):
    found = plan(Job.objects.with_status(status).order_by())
    assert {index for index in indexes if index in found} == indexes, found
    assert "Seq Scan" not in found


def test_a_list_by_status_finds_what_the_stored_status_says(filled):
    for status in ("queued", "running", "uploaded", "succeeded", "failed", "canceled"):
        by_index = set(Job.objects.with_status(status).values_list("pk", flat=True))
        assert by_index == set(Job.objects.filter(Q(status=status)).values_list("pk", flat=True))
    both = Job.objects.with_status("running", "failed")
    assert set(both.values_list("status", flat=True)) == {"running", "failed"}


def test_the_numbers_of_a_scrape_need_no_table_scan(filled):
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {metrics._QUERY}", {"limit": metrics.MAX_COUNTED_JOBS})
        found = "\n".join(line for (line,) in cursor.fetchall())
    assert not re.search(r"Seq Scan on runtime_(jobs|worker_leases)", found), found
