"""`/workflow-runs/` and the page of one run: who sees it, the graph, steps, annotations and logs."""

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from orchestrator.artifacts.storage import artifact_storage
from orchestrator.step_logs.finalizing import finalize_step_log
from runtime_jobs.models import JobStep, Membership
from tests.factories import OrganizationFactory
from tests.orchestrator.step_logs.logs import append, end
from tests.workflow_runs import Runner, job_of, started

pytestmark = pytest.mark.django_db
STEPS = "[{name: Compile, run: make}, {id: unit, run: make test}]"
JOBS = {"build": {"name": "'Build <b>'", "steps": STEPS}, "lint": None, "test": {"needs": "[build, lint]"}}


@pytest.fixture(autouse=True)
def _folder(settings, tmp_path):
    options = {"OPTIONS": {"location": str(tmp_path)}}
    settings.STORAGES = settings.STORAGES | {"artifacts": settings.STORAGES["artifacts"] | options}


@pytest.fixture
def run(db):
    return started(JOBS)


@pytest.fixture
def member(run):
    """A member of the organization of the run."""
    return client_of_member(run.repository.project.organization)


def client_of_member(organization, name="mia"):
    user = get_user_model().objects.create_user(name, password="correct horse battery")
    Membership.objects.create(user=user, organization=organization)
    client = Client()
    client.force_login(user)
    return client


def path_of(run):
    return f"/workflow-runs/{run.pk}/"


def text(response):
    assert response.status_code == 200, response.content
    return response.content.decode()


def steps_of(run, key):
    return list(JobStep.objects.filter(job=job_of(run, key)).order_by("index"))


def test_a_member_sees_the_runs_of_the_organization_and_no_other(run, member, django_assert_max_num_queries):
    for _ in range(3):
        started(JOBS)
    with django_assert_max_num_queries(8):
        page = text(member.get("/workflow-runs/"))
    assert page.count("alice/demo #") == 4
    assert path_of(run) in page
    stranger = client_of_member(OrganizationFactory(slug="neighbour"), "sam")
    assert "alice/demo" not in text(stranger.get("/workflow-runs/"))
    assert stranger.get(path_of(run)).status_code == 404
    assert member.get("/workflow-runs/999999999/").status_code == 404


def test_without_a_session_the_page_leads_to_the_log_in(run):
    response = Client().get(path_of(run))
    assert (response.status_code, response["Location"]) == (302, f"/login/?next={path_of(run)}")
    assert Client().get(path_of(run), headers={"Accept": "application/json"}).status_code == 401
    assert Client().post(path_of(run)).status_code in {302, 405}


def test_the_graph_has_each_job_with_its_state_and_its_needs(run, member):
    page = text(member.get(path_of(run)))
    assert page.count('class="node ') == 3
    assert page.count('class="edge"') == 2
    assert "Build &lt;b&gt;" in page
    assert "test: queued; needs build, lint" in page
    assert "data-refresh" in page
    Runner().run_all(test="failure")
    page = text(member.get(path_of(run)))
    assert 'class="node bad chosen"' in page, "the failed job is displayed first"
    assert page.count('class="node good"') == 2
    assert '<span class="state bad">failure</span>' in page
    assert "data-refresh" not in page


def test_the_steps_of_the_chosen_job_with_their_logs_and_annotations(run, member):
    runner = Runner()
    runner.claim_all()
    first, second = steps_of(run, "build")
    append(first, 0, b"\x1b[31mcompiled <script>\x1b[0m\n::error file=a.c,line=7,title=Sum::3 is not 4\n")
    end(first, timezone.now())
    append(second, 0, b"tested\n")
    page = text(member.get(path_of(run), {"job": "build"}))
    assert "compiled &lt;script&gt;" in page
    assert ">Compile<" in page
    assert ">unit<" in page
    assert "<b>Sum</b> 3 is not 4" in page
    assert "a.c:7" in page
    assert "1 annotation<" in page
    assert page.index("compiled") < page.index("tested")
    assert "tested" not in text(member.get(path_of(run), {"job": "build", "log": "0"}))
    assert "compiled" not in text(member.get(path_of(run), {"job": "lint"}))
    assert "compiled" in text(member.get(path_of(run), {"job": "no such job"})), "the first one that runs"


def test_a_log_in_the_storage_is_displayed_and_its_absence_is_explained(run, member, monkeypatch):
    Runner().claim_all()
    (first, _) = steps_of(run, "build")
    append(first, 0, b"stored\n")
    end(first, timezone.now())
    assert finalize_step_log(first.pk)
    assert "stored\n" in text(member.get(path_of(run), {"job": "build"}))

    def refuse(*_, **__):
        raise OSError("connection refused")

    monkeypatch.setattr(type(artifact_storage()), "read", refuse)
    page = text(member.get(path_of(run), {"job": "build"}))
    assert "The storage of logs does not answer" in page
    assert ">Compile<" in page


def test_only_the_end_of_long_logs_is_on_the_page(run, member, monkeypatch):
    monkeypatch.setattr("orchestrator.step_logs.log_tails.TAIL_BYTES", 30)
    Runner().claim_all()
    first, second = steps_of(run, "build")
    append(first, 0, b"".join(b"line %d\n" % number for number in range(9)))
    append(second, 0, b"second\n")
    page = text(member.get(path_of(run), {"job": "build"}))
    assert "line 8\n" in page
    assert "line 5" not in page
    assert "the whole log" in page
    assert "second\n" in page


def test_the_job_of_an_operator_s_page_lists_steps_and_annotations(run, admin_client):
    Runner().claim_all()
    (first, _) = steps_of(run, "build")
    append(first, 0, b"::warning file=a.c,line=7::<b>odd</b>\n")
    end(first, timezone.now())
    page = text(admin_client.get(f"/admin/runtime_jobs/job/{first.job.pk}/change/"))
    assert "Compile" in page
    assert "&lt;b&gt;odd&lt;/b&gt;" in page
    assert "a.c:7" in page
    assert f"/v1/jobs/{first.job_id}/logs?step=0" in page
    assert path_of(run) in text(admin_client.get(f"/admin/runtime_jobs/workflowrun/{run.pk}/change/"))


def test_a_run_that_waits_says_for_what(run, member):
    started(JOBS, needs_approval=True, from_fork=True)
    page = text(member.get("/workflow-runs/"))
    assert '<span class="state waiting">waits for an approval</span>' in page
    assert '<span class="state waiting">queued</span>' in page
