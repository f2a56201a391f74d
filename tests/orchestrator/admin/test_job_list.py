"""Jobs are found by what an operator has in hand, and narrowed by filters that combine."""

import re

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from orchestrator.admin.jobs import search
from orchestrator.admin.labels import job_badge, queue_label, wait_label
from orchestrator.selectors.pending_reasons.reason import ReasonCode, WaitReason
from orchestrator.selectors.pending_reasons.service import MAX_POSITION
from orchestrator.services import job_end
from runtime_jobs.models import Job
from tests.factories import ProjectFactory, WorkerFactory, claimed, submitted, submitted_steps
from tests.orchestrator.admin.fixtures import COMMITS
from tests.orchestrator.admin.pages import address

LIST = "/admin/runtime_jobs/job/"


def names(scene, answer) -> set[str]:
    assert answer.status_code == 200
    known = {job.job_ulid: name for name, job in scene.jobs.items()}
    return {known[job.job_ulid] for job in answer.context["cl"].result_list}


def test_the_newest_come_first(olga, scene):
    rows = olga.get(LIST).context["cl"].result_list
    assert [row.pk for row in rows] == sorted((row.pk for row in rows), reverse=True)


def test_the_list_says_why_each_waits(olga, scene):
    text = olga.get(f"{LIST}?status=queued").content.decode()
    for words in (">#2 in queue</i>", ">No matching worker</i>", ">Dependencies</i>"):
        assert words in text, words
    assert 'class="danger" title="No worker is online in the pool gpu-linux."' in text


def test_a_list_costs_the_same_however_many_wait(olga, db):
    project = ProjectFactory()
    submitted(project)
    few = queries_of(olga)
    for _ in range(5):
        submitted(project, depends_on=(submitted(project),))
    assert queries_of(olga) == few + 1  # what the blocked ones wait for, now that there are some
    for _ in range(5):
        submitted(project, depends_on=(submitted(project),))
    assert queries_of(olga) == few + 1


def queries_of(client) -> int:
    client.get(LIST)
    with CaptureQueriesContext(connection) as seen:
        client.get(LIST)
    return len(seen)


# Each address of the list, and what it shows of the scene.
NARROWED = {
    "status=failed": {"lost", "typo", "gone", "oom"},
    "status=failed&status=canceled": {"lost", "typo", "gone", "oom", "superseded"},
    "state=executing": {"running", "stopping", "fresh"},
    "state=queued&pool=gpu-linux": {"stranded-0", "stranded-1", "stranded-2"},
    "failure_reason=lease_expired&failure_reason=out_of_memory": {"lost", "oom"},
    "org_slug=sandtrace": {"good-3", "gone", "stopping"},
    "org_slug=northwind&project_slug=api&status=running": {"fresh"},
    "trigger_kind=manual": set(),
    "cancel=yes": {"superseded", "stopping"},
    "cancel=overdue": set(),
    "attempts=retries": {"lost-again"},
    "attempts=requeued": {"never"},
    "created_at_to=2020-01-01": set(),
    "created_at_from=2020-01-01&status=canceled": {"superseded"},
    "created_at_from=nonsense&created_at_to=2026-02-31&status=canceled": {"superseded"},
    "org_slug=&status=&cancel=&pool=&state=canceled": {"superseded"},
}


def test_filters_combine(olga, scene):
    for query, expected in NARROWED.items():
        assert names(scene, olga.get(f"{LIST}?{query}")) == expected, query


def test_what_ended_lately_is_found_by_its_end(olga, scene):
    Job.objects.filter(pk=scene.jobs["gone"].pk).update(created_at=scene.ago(10_000))
    found = names(scene, olga.get(f"{LIST}?status=failed&ended=1h"))
    assert found == {"gone", "oom"}


def test_a_day_includes_its_jobs(olga, db):
    day = submitted().created_at.date().isoformat()
    page = olga.get(f"{LIST}?created_at_from={day}&created_at_to={day}")
    assert len(page.context["cl"].result_list) == 1


def test_a_job_is_found_by_what_an_operator_has_in_hand(olga, scene):
    oom, vision = scene.jobs["oom"], {"stranded-0", "stranded-1", "stranded-2"}
    of_commit = {name for name, job in scene.jobs.items() if job.git_commit == COMMITS[2]}
    for text, expected in {
        f" {oom.job_ulid} ": {"oom"},
        COMMITS[2]: of_commit,
        COMMITS[2][:7]: of_commit,
        "fffffff": set(),
        "acme-labs/vision": vision,
        "vision": vision,
        "acme-labs": vision,
        "https://github.com/acme-labs/vision.git": vision,
        "https://github.com/acme-labs/vision/": vision,
        scene.jobs["good-1"].ingest_run_id: {"good-1"},
        "": set(scene.jobs),
    }.items():
        assert names(scene, olga.get(LIST, {"q": text})) == expected, text
    assert "oom" in names(scene, olga.get(LIST, {"q": oom.job_ulid[:20]}))
    assert names(scene, olga.get(LIST, {"q": "northwind/storefront", "status": "failed"})) == {"lost", "oom"}


def test_what_names_nothing_finds_nothing(olga, db):
    submitted()
    for text in ("%", "eb", "a b", "'; --", "\N{SNOWMAN}", "x" * 5000, "rtj_", "rtj_ILOU", "we%", "../..", "nul\0"):
        answer = olga.get(LIST, {"q": text})
        assert answer.status_code == 200
        if "\0" not in text:  # refused by the search form, with words
            assert list(answer.context["cl"].result_list) == [], text


# Rows that differ in what a look-up searches.
COPIES = """
INSERT INTO runtime_jobs SELECT copied.* FROM runtime_jobs j CROSS JOIN generate_series(1, 2000) n
 CROSS JOIN LATERAL jsonb_populate_record(j, jsonb_build_object(
    'id', j.id + n, 'job_ulid', left(j.job_ulid, -5) || lpad(n::text, 5, '0'),
    'git_commit', reverse(lpad(to_hex(n * 7919), 40, '0')))) AS copied
 WHERE j.id = %s
"""


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("rtj_01k", "job_ulid"),
        (COMMITS[0], "org_slug.*git_commit"),
        (COMMITS[0][:9], "org_slug.*git_commit"),
        ("run_x", "ingest_run_id"),
    ],
)
def test_a_look_up_has_an_index(text, columns, db):
    """Among so many jobs, and with fresh statistics, the index is by far the cheapest plan."""
    with connection.cursor() as cursor:
        cursor.execute(COPIES, [submitted().pk])
        cursor.execute("ANALYZE runtime_jobs, runtime_jobs_organization")
    plan = search.find(Job.objects.all(), text).explain()
    assert re.search(f"on runtime_jobs .*\n *Index Cond: .*{columns}", plan), plan


def test_a_repository_is_looked_for_among_the_newest_only(db, monkeypatch):
    monkeypatch.setattr(search, "MAX_SCANNED_JOBS", 2)
    newest = [submitted().pk for _ in range(4)][2:]
    assert sorted(search.find(Job.objects.all(), "cc-consulting-nv/web").values_list("pk", flat=True)) == newest


@pytest.mark.django_db(transaction=True)
def test_a_search_that_takes_too_long_is_answered_with_words(olga, monkeypatch):
    def slow(jobs, _text):
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '100ms'")
        return jobs.extra(where=["(SELECT pg_sleep(5)) IS NOT NULL"])

    monkeypatch.setattr(search, "find", slow)
    try:
        answer = olga.get(f"{LIST}?q=web")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET statement_timeout")
    assert (answer.status_code, answer["Location"]) == (302, LIST)
    assert "timed out" in olga.get(LIST).content.decode()


def test_other_troubles_of_the_database_are_not_hidden(olga, monkeypatch, db):
    def broken(*_):
        raise OperationalError("the disk is gone")

    monkeypatch.setattr(search, "find", broken)
    with pytest.raises(OperationalError):
        olga.get(f"{LIST}?q=web")


def test_a_command_that_exited_with_an_error_is_not_green(olga, db):
    """The job has succeeded, because its results are uploaded; its badge was green and had no exit code."""
    worker, jobs = WorkerFactory(), {}
    for exit_code in (7, 0):
        submitted()
        lease = claimed(worker).lease.lease_ulid
        jobs[exit_code] = job_end.complete(
            lease_ulid=lease, worker=worker, ingest_run_id=f"run_{exit_code}", exit_code=exit_code
        )
    assert {job_badge(job).text for job in jobs.values()} == {"succeeded · exit 7", "succeeded"}
    assert (job_badge(jobs[7]).colour, job_badge(jobs[0]).colour) == ("warning", "success")
    assert olga.get(LIST).content.decode().count("succeeded · exit 7") == 1
    page = olga.get(f"{LIST}{jobs[7].job_ulid}/change/")
    assert page.context["page"].summary.headline == "Succeeded, but the command exited with code 7"
    assert page.context["page"].summary.colour == "warning"


def test_a_position_that_is_not_counted_to_its_end_has_a_plus():
    assert queue_label(MAX_POSITION - 1) == "#999 in queue"
    assert queue_label(MAX_POSITION) == "#1,000+ in queue"
    assert wait_label(WaitReason(ReasonCode.BEHIND, "", {"position": MAX_POSITION})) == "#1,000+ in queue"


def test_both_kinds_of_success_have_one_name(olga, db):
    """The list shows the status of the API: `uploaded` with results, `succeeded` for other jobs."""
    worker = WorkerFactory()
    for job, run in ((submitted(), "run_1"), (submitted_steps(), None)):
        lease = claimed(worker, job_types=(job.job_type,)).lease.lease_ulid
        job_end.complete(lease_ulid=lease, worker=worker, ingest_run_id=run, exit_code=0)
    assert set(Job.objects.values_list("status", flat=True)) == {"uploaded", "succeeded"}
    answer = olga.get(f"{LIST}?status=succeeded")
    assert len(answer.context["cl"].result_list) == 2
    assert "uploaded" not in answer.content.decode().lower()


def test_a_row_says_how_it_stands(olga, scene):
    page = olga.get(f"{LIST}?status=failed").content.decode()
    assert scene.jobs["oom"].job_ulid in page
    assert re.search(r">33 min[^<]* ago</span> · out of memory<", page)
    assert address(Job, "change", scene.jobs["oom"].pk) in page
    assert "canceling" in olga.get(f"{LIST}?cancel=yes&status=running").content.decode()


def test_a_row_of_the_list_costs_no_template_and_little_html(olga):
    """The theme renders a template for each checkbox and label, and a kilobyte of style classes in each cell."""
    project = ProjectFactory()
    submitted(project)
    short = olga.get(LIST)
    for _ in range(49):
        submitted(project)
    long = olga.get(LIST)
    assert (len(short.context["cl"].result_list), len(long.context["cl"].result_list)) == (1, 50)
    assert len(long.templates) == len(short.templates)
    assert len(long.content) <= 120 << 10
    assert (len(long.content) - len(short.content)) / 49 < 1500
