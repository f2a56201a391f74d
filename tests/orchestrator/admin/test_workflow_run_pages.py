"""The pages of workflow runs in Chromium: the graph of needs, the rerun with its changes, the approval, a wrong file.

With SCREENSHOTS=docs/images in the environment the pictures go there.
"""

import os
from pathlib import Path

import pytest

from orchestrator.workflows import workflow_end
from orchestrator.workflows.run_graph import COLUMN, ROW, GraphJob, draw_graph
from runtime_jobs.models import JobStep, RejectedWorkflow, WorkflowRun
from runtime_jobs.states import Conclusion, StepStatus
from runtime_jobs.workflows.parsing import parse_workflow
from tests.factories import COMMIT, ProjectFactory
from tests.orchestrator.admin.conftest import NAME
from tests.orchestrator.admin.test_screenshots import press
from tests.orchestrator.repositories.world import Origin, mirrored
from tests.workflow_runs import FILE, Runner, job_of, reread, started, states, workflow_text

PIPELINE = workflow_text(
    {
        "lint": {"name": "Lint", "steps": "[{uses: actions/checkout@v4}, {name: Ruff, run: ruff check}]"},
        "build": {"name": "Build the packages", "steps": "[{uses: actions/checkout@v4}, {name: Compile, run: make}]"},
        "unit": {"name": "Unit tests", "needs": "build"},
        "browser": {"name": "Browser tests of the whole console", "needs": "build"},
        "docs": {"name": "Documentation", "needs": "lint"},
        "publish": {"name": "Publish", "needs": "[unit, browser, docs]", "if": "shithub.ref == 'refs/heads/main'"},
        "report": {"name": "Report", "needs": "publish", "if": "always()"},
    },
    on="{push: {}, workflow_dispatch: {inputs: {target: {default: staging}}}}",
    name="CI",
)
BROKEN = b"on: push\njobs:\n  build:\n    runs-on: linux\n    step:\n      - run: make\n"


def graph_of(**needs):
    return draw_graph([GraphJob(key, key * 20, tuple(found), "queued", "info") for key, found in needs.items()])


def test_jobs_are_right_of_those_that_they_need():
    graph = graph_of(c=["a", "b"], a=[], b=["a"], d=["gone"])
    places = {node.key: ((node.x - 4) // COLUMN, (node.y - 4) // ROW) for node in graph.nodes}
    assert places == {"c": (2, 0), "a": (0, 0), "b": (1, 0), "d": (0, 1)}
    assert len(graph.lines) == 3
    assert all(len(node.label) <= 24 < len(node.name) + 5 for node in graph.nodes)
    assert graph_of(a=["b"], b=["a"]).nodes[0].x == 4  # a circle cannot be stored, and would be displayed


@pytest.fixture
def pictures(tmp_path) -> Path:
    return Path(os.environ.get("SCREENSHOTS") or tmp_path / "pictures")


@pytest.fixture
def repository(transactional_db, settings, tmp_path):
    """A mirrored repository with the pipeline. `commit`: its commit."""
    (tmp_path / "origins").mkdir()
    settings.REPOSITORY_ROOT = str(tmp_path / "origins")
    settings.MIRROR_DIR = str(tmp_path / "mirrors")
    origin = Origin(tmp_path / "origins" / "web.git")
    commit = origin.commit({FILE: PIPELINE.encode()})
    found = mirrored(origin, project=ProjectFactory())
    found.commit = commit
    return found


def end_steps(run, key):
    steps = JobStep.objects.filter(job=job_of(run, key).job_ulid)
    now = job_of(run, key).started_at
    steps.update(status=StepStatus.COMPLETED, conclusion=Conclusion.SUCCESS, started_at=now, completed_at=now)


def shown(browser):
    return " ".join(browser.evaluate("document.querySelector('#main, body').textContent").split())


def is_not_too_wide(browser):
    return browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


@pytest.mark.slow
def test_a_failed_run_is_displayed_and_rerun_with_changes(browser, live_server, repository, pictures):
    run, runner = started(PIPELINE, repository, head_sha=repository.commit), Runner()
    runner.claim_all()
    end_steps(run, "build")
    runner.end("lint")
    runner.end("build")
    runner.run_all(browser="failure")
    address = f"{live_server.url}/admin/runtime_jobs/workflowrun/{run.pk}/change/"
    browser.show(height=1200)
    browser.open(address)
    assert browser.evaluate("document.querySelectorAll('.graph .node').length") == 7
    assert browser.evaluate("document.querySelectorAll('.graph .line').length") == 7
    text = shown(browser)
    for words in ("CI #1", "Failed.", "Browser tests of the whole console", "a job that it needs did not succeed"):
        assert words in text
    assert is_not_too_wide(browser)
    browser.picture(pictures / "admin-workflow-run.png")

    press(browser, 'a[href$="/rerun-failed/"]')
    browser.picture(pictures / "admin-workflow-rerun.png")
    browser.evaluate("document.querySelector('#id_reason').value = 'the browser ran out of memory'")
    browser.evaluate("document.querySelector('#id_runs_on').value = 'two words'")
    browser.evaluate("document.querySelector('#id_env').value = 'HEADLESS=1\\nRETRIES=2'")
    press(browser, 'form.card button[type="submit"]')
    assert "A label has 1 to 100" in shown(browser)
    browser.errors.clear()  # the browser reports the status 400 of the form
    browser.evaluate("document.querySelector('#id_runs_on').value = 'linux'")
    press(browser, 'form.card button[type="submit"]')
    assert "Started as run #2." in shown(browser)
    again = WorkflowRun.objects.latest("pk")
    assert (again.parent_id, again.actor, again.reason) == (run.pk, NAME, "the browser ran out of memory")
    assert again.edits == {"runs_on": "linux", "env": {"HEADLESS": "1", "RETRIES": "2"}}
    runner.claim_all()
    browser.open(f"{live_server.url}/admin/runtime_jobs/workflowrun/{again.pk}/change/")
    text = shown(browser)
    for words in (
        "Rerun of #1",
        f"Push by {NAME}",
        "the browser ran out of memory",
        "HEADLESS=1",
        "taken over from the parent",
    ):
        assert words in text
    assert browser.evaluate("document.querySelector('#run').hasAttribute('hx-get')")
    browser.picture(pictures / "admin-workflow-rerun-open.png")
    browser.show(height=1200, dark=True)
    browser.open(f"{live_server.url}/admin/runtime_jobs/workflowrun/{again.pk}/change/")
    browser.picture(pictures / "admin-workflow-run-dark.png")
    browser.open(address)
    assert "the browser ran out of memory" in shown(browser)  # among the reruns of the first run
    assert browser.errors == []


@pytest.mark.slow
def test_the_page_of_an_open_run_follows_its_jobs(browser, live_server, repository):
    run, runner = started(PIPELINE, repository, head_sha=repository.commit), Runner()
    browser.open(f"{live_server.url}/admin/runtime_jobs/workflowrun/{run.pk}/change/")
    assert browser.evaluate("document.querySelector('.node[data-key=lint] .state').textContent") == "queued"
    runner.claim_all()
    runner.end("lint")
    browser.until("document.querySelector('.node[data-key=lint] .state').textContent === 'success'", 60)
    browser.until("document.querySelector('.node[data-key=build] .state').textContent === 'running'", 60)
    assert browser.errors == []


@pytest.mark.slow
def test_a_run_of_a_fork_is_approved_by_its_button(browser, live_server, repository, pictures):
    run = started(PIPELINE, repository, needs_approval=True, from_fork=True, event="pull_request")
    browser.show(height=900)
    browser.open(f"{live_server.url}/admin/runtime_jobs/workflowrun/{run.pk}/change/")
    assert "Waiting for an approval" in shown(browser)
    browser.picture(pictures / "admin-workflow-approval.png")
    press(browser, 'a[href$="/approve/"]')
    browser.evaluate("document.querySelector('#id_reason').value = 'I have read the scripts'")
    press(browser, 'form.card button[type="submit"]')
    assert "Approved." in shown(browser)
    assert reread(run).approved_by == f"operator:{NAME}"
    assert states(run)["lint"] == "queued"
    assert browser.errors == []


@pytest.mark.slow
def test_the_lists_and_a_wrong_file(browser, live_server, repository, pictures):
    for conclusion in ("success", "failure", "cancelled"):
        run, runner = started(workflow_text({"a": None}, name="Nightly"), repository), Runner()
        runner.claim_all()
        runner.end("a", conclusion)
    started(PIPELINE, repository, needs_approval=True, from_fork=True)
    started(PIPELINE, repository)
    workflow_end.settle_run(batch_id=run.batch_id)
    found = parse_workflow(BROKEN)
    rejected = RejectedWorkflow.objects.create(
        repository=repository, workflow_file=FILE, head_sha=COMMIT, head_ref="refs/heads/main", event="push",
        trigger_id="push:x", diagnostics=[diagnostic.as_json() for diagnostic in found.diagnostics],
    )  # fmt: skip
    browser.show(height=700)
    for name, path, words in (
        ("runs", "workflowrun/", ("#5", "Nightly", "approval", "failure")),
        ("rejected", "rejectedworkflow/", (FILE, "Push")),
        (
            "rejected-file",
            f"rejectedworkflow/{rejected.pk}/change/",
            ("Line 5", "jobs.build.step", "This key is unknown"),
        ),
    ):
        browser.open(f"{live_server.url}/admin/runtime_jobs/{path}")
        text = shown(browser)
        assert [word for word in words if word not in text] == [], name
        assert is_not_too_wide(browser)
        browser.picture(pictures / f"admin-workflow-{name}.png")
    assert browser.errors == []


def test_a_rerun_by_hand_may_change_its_inputs(admin_client, repository):
    payload = {"inputs": {"target": "staging"}}
    run = started(PIPELINE, repository, head_sha=repository.commit, event="workflow_dispatch", event_payload=payload)
    Runner().run_all()
    address = f"/admin/runtime_jobs/workflowrun/{run.pk}/rerun/"
    assert "target=staging" in admin_client.get(address).content.decode()
    unchanged = {"reason": "again", "inputs": "target=staging", "env": "", "runs_on": "", "timeout_minutes": ""}
    assert admin_client.post(address, unchanged | {"inputs": "other=x"}).status_code == 400
    assert admin_client.post(address, unchanged | {"inputs": "target"}).status_code == 400
    assert admin_client.post(address, unchanged | {"timeout_minutes": "5000"}).status_code == 400
    assert admin_client.post(address, unchanged | {"env": "A=1\nA=2"}).status_code == 400
    assert WorkflowRun.objects.count() == 1
    assert admin_client.post(address, unchanged).status_code == 302
    assert WorkflowRun.objects.latest("pk").edits == {}
    assert admin_client.post(address, unchanged | {"inputs": "target=live", "timeout_minutes": "3"}).status_code == 302
    again = WorkflowRun.objects.latest("pk")
    assert again.edits == {"inputs": {"target": "live"}, "timeout_minutes": 3}
    assert again.event_payload == {"inputs": {"target": "live"}}


def test_the_page_costs_the_same_for_many_jobs(admin_client, repository, django_assert_max_num_queries):
    few = started({"a": None}, repository)
    steps = "[{run: a}, {run: b}]"
    many = started({f"j{number}": {"steps": steps} for number in range(20)}, repository)
    for run in (few, many):
        with django_assert_max_num_queries(18):
            assert admin_client.get(f"/admin/runtime_jobs/workflowrun/{run.pk}/change/").status_code == 200
