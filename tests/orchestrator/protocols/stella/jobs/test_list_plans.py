"""A page of `GET /api/jobs` by a status reads about as many rows as it has, however many jobs the tenants have."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from orchestrator.protocols.stella.jobs.filters import OrchestrationJobFilters
from orchestrator.protocols.stella.jobs.pages import MAX_PARTS, index_parts, read_root_page
from orchestrator.protocols.stella.visible_jobs import newest_attempts
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job
from tests.factories import OrganizationFactory, ProjectFactory, submitted
from tests.orchestrator.protocols.stella.requests import ok

pytestmark = pytest.mark.django_db

ACME, OTHER = "acme-corp", "other"
ROWS = 1500  # of each tenant and status: those that wait are the oldest, and those that failed the newest
SIZE = 5
MOST_READ = 300  # rows and entries of indexes for one page; some are read again by their keys
FILL = f"""INSERT INTO runtime_jobs
SELECT filled.*
  FROM (SELECT n, tenant, 'rtj_' || lpad((2 * n + tenant)::text, 26, '0') AS ulid,
               (ARRAY['queued', 'succeeded', 'failed'])[1 + (n - 1) / {ROWS}] AS state
          FROM generate_series(1, 3 * {ROWS}) n CROSS JOIN (VALUES (1), (2)) tenants (tenant)) numbered
 CROSS JOIN LATERAL json_populate_record((SELECT j FROM runtime_jobs j LIMIT 1), json_build_object(
           'id', 1000000 + 2 * n + tenant, 'job_ulid', ulid, 'root_job_ulid', ulid, 'state', state,
           'org_slug', (ARRAY['{ACME}', '{OTHER}'])[tenant],
           'finished_at', CASE WHEN state <> 'queued' THEN now() END,
           'failure_reason', CASE WHEN state = 'failed' THEN 'timed_out' END,
           'failure_class', CASE WHEN state = 'failed' THEN 'policy' END,
           'ingest_run_id', CASE WHEN state = 'succeeded' AND n % 2 = 0 THEN 'run_' || ulid END,
           'needs_ingest', n % 2 = 0, 'job_type', CASE WHEN n % 2 = 0 THEN 'runtime' ELSE 'steps' END)) AS filled"""
# One tenant has nearly all jobs, all of one type, and the planner does not know yet of most that have ended.
FILL_ONE_TENANT = """INSERT INTO runtime_jobs
SELECT filled.*
  FROM (SELECT n, lpad(n::text, 26, '0') AS ulid FROM generate_series(%(first)s::int, %(last)s) n) numbered
 CROSS JOIN LATERAL json_populate_record((SELECT j FROM runtime_jobs j LIMIT 1), json_build_object(
           'id', 1000000 + n, 'job_ulid', 'rtj_' || ulid, 'root_job_ulid', 'rtj_' || ulid, 'org_slug', %(tenant)s::text,
           'job_type', 'steps', 'needs_ingest', false, 'state', %(state)s::text,
           'finished_at', CASE WHEN %(state)s::text <> 'queued' THEN now() END)) AS filled"""
STATES = {"queued": "queued", "completed": "succeeded"}


@pytest.fixture
def audited():
    """The rows serve the planner only."""


@pytest.fixture
def filled(project):
    submitted(ProjectFactory(organization=OrganizationFactory(slug="pattern")))
    with connection.cursor() as cursor:
        cursor.execute(FILL)
        cursor.execute("ANALYZE runtime_jobs")


def expected(tenants, status, job_type):
    jobs = Job.objects.filter(org_slug__in=tenants, state=STATES[status])
    return [job for job in jobs.order_by("-id") if job_type in (None, job.job_type)]


def rows_read(statement):
    """The number of rows of jobs that a statement reads, with those that it passes over."""

    return sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in scans(statement)
    )


def scans(statement):
    """The nodes of the plan that read rows of jobs, after its execution."""

    def below(node):
        own = [node] if node.get("Relation Name") == "runtime_jobs" else []
        return own + [found for inner in node.get("Plans", ()) for found in below(inner)]

    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
        (plan,) = cursor.fetchone()[0]
    return below(plan["Plan"])


def page_statement(queries):
    return next(query["sql"] for query in queries if 'FROM "runtime_jobs"' in query["sql"])


# One test for all of them: the rows are many.
CASES = [(status, job_type) for status in STATES for job_type in (None, "steps", "runtime")]


def test_pages_of_the_api_are_bounded(filled, alice):
    for status, job_type in CASES:
        wanted = [str(uuid_of(job.job_ulid)) for job in expected([ACME], status, job_type)]
        query = f"/api/jobs?status={status}&limit={SIZE}" + (f"&jobType={job_type}" if job_type else "")
        pages, links = [], [query]
        for number in range(3):
            with CaptureQueriesContext(connection) as queries:
                answer = ok(alice.get(links[-1]))
            pages.append([row["jobId"] for row in answer["results"]])
            links.append(answer["next"])
            assert pages[-1] == wanted[number * SIZE : (number + 1) * SIZE], query
            assert rows_read(page_statement(queries)) < MOST_READ, query
        third = ok(alice.get(links[2]))
        with CaptureQueriesContext(connection) as queries:
            back = ok(alice.get(third["previous"]))
        assert [row["jobId"] for row in back["results"]] == pages[1], query
        assert rows_read(page_statement(queries)) < MOST_READ, query


def test_pages_of_several_tenants_are_bounded(filled):
    tenants = (ACME, OTHER)
    for status, job_type in CASES:
        filters = {"status": status} | ({"jobType": job_type} if job_type else {})
        found = OrchestrationJobFilters(filters, queryset=newest_attempts(tenants))
        parts = index_parts(status, tenants, job_type)
        with CaptureQueriesContext(connection) as queries:
            page = read_root_page(found.qs, status=status, parts=parts, size=SIZE, after=None)
        assert page.roots == [job.job_ulid for job in expected(tenants, status, job_type)[:SIZE]], filters
        assert rows_read(page_statement(queries)) < MOST_READ, filters


def test_pages_of_a_tenant_with_nearly_all_jobs_are_bounded(project, alice):
    submitted(ProjectFactory(organization=OrganizationFactory(slug="pattern")))
    queued, known, last = 7 * ROWS, 7 * ROWS + 150, 8 * ROWS
    with connection.cursor() as cursor:
        for first, end, state in (
            (1, queued, "queued"),
            (queued + 1, known, "succeeded"),
            (known + 1, last, "succeeded"),
        ):
            values = {"first": first, "last": end, "state": state, "tenant": ACME}
            cursor.execute(FILL_ONE_TENANT, values)
            if end == known:
                cursor.execute("ANALYZE runtime_jobs")
    for status in STATES:
        query = f"/api/jobs?status={status}&jobType=steps&limit={SIZE}"
        for _ in range(2):
            with CaptureQueriesContext(connection) as queries:
                answer = ok(alice.get(query))
            assert rows_read(page_statement(queries)) < MOST_READ, query
            # Of two expected rows all plans cost the same, and chance chooses one that sorts.
            assert max(node["Plan Rows"] for node in scans(page_statement(queries))) > 5 * SIZE, query
            query = answer["next"]


def test_each_completed_job_of_many_tenants_is_found(filled):
    found = OrchestrationJobFilters({"status": "completed"}, queryset=newest_attempts(None))
    page = read_root_page(found.qs, status="completed", parts=index_parts("completed", None, None), size=9, after=None)
    assert page.roots == [job.job_ulid for job in expected((ACME, OTHER), "completed", None)[:9]]


def test_a_condition_is_estimated_once(filled, alice):
    """A repeated one would count twice: the planner expects few rows then, and sorts all of them."""
    with CaptureQueriesContext(connection) as queries:
        ok(alice.get("/api/jobs?status=completed&jobType=steps"))
    assert page_statement(queries).count("'succeeded'") == 1


def test_a_page_has_a_bounded_number_of_parts():
    many = tuple(f"org-{number}" for number in range(MAX_PARTS + 1))
    assert index_parts("queued", many, "steps") == []
    assert len(index_parts("completed", many, "steps")) == len(index_parts("completed", None, None)) == 1
    assert len(index_parts("queued", many[:-1], "steps")) == MAX_PARTS
    assert index_parts("failed", (ACME,), None) == [], "one index has them in the order of pages"
