"""Each example of `docs/workflows.md` is run: started as a workflow run, executed by a runner, and compared with the page."""

import re
from typing import Any

import pytest

from config.paths import BASE_DIR
from orchestrator.workflows.claims import prepare_job
from runtime_jobs.models import Job, JobStep, WorkflowEvent, WorkflowRun
from runtime_jobs.workflows.diagnostics import Severity
from runtime_jobs.workflows.matching import TriggerEvent, is_triggered
from runtime_jobs.workflows.parsing import parse_workflow
from runtime_jobs.workflows.payloads import dispatch_payload, resolve_inputs
from tests.factories import COMMIT
from tests.suite_functions import audit_findings
from tests.workflow_runs import LABEL, Runner, job_of, parsed, reread, started, states

pytestmark = pytest.mark.django_db

PAGE = (BASE_DIR / "docs" / "workflows.md").read_text()
EXAMPLES = {
    re.findall("^name: (.*)$", text, re.MULTILINE)[0]: text for text in re.findall("```yaml\n(.*?)```", PAGE, re.DOTALL)
}
SKIPPED, DONE = "canceled:condition_false", "succeeded"
NOT_NEEDED = "canceled:dependency_failed"


@pytest.fixture(autouse=True)
def audited():
    """Check the invariants after each test."""
    yield
    assert audit_findings(chains=True) == []


def run(name: str, **changes: Any) -> WorkflowRun:
    """Start a run of an example."""
    return started(EXAMPLES[name].replace("ubuntu-latest", LABEL), **changes)


def ended(name: str, failing: str = "", **changes: Any) -> tuple[dict[str, str], str]:
    """Start a run of an example and execute its jobs. Returns their states and the conclusion of the run."""
    found = run(name, **changes)
    Runner().run_all(**({failing: "failure"} if failing else {}))
    return states(found), reread(found).conclusion or ""


def test_all_examples_are_run():
    tested = {"First workflow", "Wrong", "All keys", "Deploy by hand", "Nightly", "Conditions", "One at a time"}
    assert set(EXAMPLES) == tested


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"Wrong"}))
def test_an_example_has_no_diagnostic(name):
    assert parse_workflow(EXAMPLES[name].encode()).diagnostics == ()


def test_the_errors_are_those_that_the_page_displays():
    (shown,) = re.findall("```text\n(.*?)```", PAGE, re.DOTALL)
    found = parse_workflow(EXAMPLES["Wrong"].encode())
    assert found.workflow is None
    assert [str(diagnostic) for diagnostic in found.diagnostics] == shown.splitlines()
    assert all(diagnostic.severity == Severity.ERROR for diagnostic in found.diagnostics)


def test_the_first_workflow():
    assert ended("First workflow") == ({"build": DONE, "test": DONE, "notify": SKIPPED}, "success")
    assert ended("First workflow", "test") == ({"build": DONE, "test": "failed", "notify": DONE}, "failure")


def test_all_keys():
    found = run("All keys")
    assert found.concurrency_group == "all-keys-refs/heads/main"
    job = job_of(found, "build")
    assert (job.spec["job_name"], job.timeout_seconds, job.spec["env"]) == ("Build and test", 600, {"STAGE": "build"})
    assert job.spec["permissions"] == {"per": {"contents": "read", "id-token": "write"}}
    steps = list(JobStep.objects.filter(job=job.job_ulid).order_by("index"))
    assert [step.uses or step.step_id or step.name for step in steps] == ["actions/checkout@v4", "unit", "Report"]
    assert (steps[0].with_values, steps[1].continue_on_error) == ({"fetch-depth": "0"}, True)
    prepared = prepare_job(
        found, job, steps, secrets={"DEPLOY_TOKEN": "x"}, variables={"REGION": "eu"}, stops_at_failure=True
    )
    assert "REGION=\"${{ 'eu' }}\"" in prepared.steps[steps[1].pk].run
    assert prepared.skipped == ()
    Runner().run_all()
    assert reread(found).conclusion == "success"
    other = run("All keys", head_ref="refs/heads/other")
    steps = list(JobStep.objects.filter(job=job_of(other, "build").job_ulid).order_by("index"))
    prepared = prepare_job(
        other, job_of(other, "build"), steps, secrets={"DEPLOY_TOKEN": "x"}, variables={}, stops_at_failure=True
    )
    assert prepared.skipped == (steps[2].pk,)
    triggers = parsed(EXAMPLES["All keys"]).triggers
    for ref, paths, starts in (
        ("refs/heads/main", ["src/a.c"], True),
        ("refs/heads/main", ["src/a.md"], False),
        ("refs/heads/release/2", ["src/a.md", "src/a.c"], True),
        ("refs/heads/release/old/1", ["src/a.c"], False),
        ("refs/heads/topic", ["src/a.c"], False),
        ("refs/tags/v1", ["src/a.c"], False),
    ):
        assert is_triggered(triggers, TriggerEvent("push", ref=ref, changed_paths=paths)) is starts, (ref, paths)


@pytest.mark.parametrize(("dry_run", "deploy", "plan"), [("false", DONE, SKIPPED), ("true", SKIPPED, DONE)])
def test_a_start_by_hand_has_inputs(dry_run, deploy, plan):
    dispatch = parsed(EXAMPLES["Deploy by hand"]).triggers.dispatch
    values, errors = resolve_inputs(dispatch, {"dry_run": dry_run})
    assert (values, errors) == ({"target": "staging", "dry_run": dry_run}, {})
    assert resolve_inputs(dispatch, {"target": "moon"})[1]
    changes = {"event": WorkflowEvent.DISPATCH, "event_payload": dispatch_payload(values)}
    assert ended("Deploy by hand", **changes) == ({"deploy": deploy, "plan": plan}, "success")


def test_a_schedule_and_tags():
    triggers = parsed(EXAMPLES["Nightly"]).triggers
    assert [schedule.source for schedule in triggers.schedules] == ["30 4 * * 1-5"]
    assert is_triggered(triggers, TriggerEvent("push", ref="refs/tags/v1.2"))
    assert not is_triggered(triggers, TriggerEvent("push", ref="refs/heads/main"))
    assert ended("Nightly", event=WorkflowEvent.SCHEDULE, event_payload={}) == ({"build": DONE}, "success")


def table() -> list[list[str]]:
    """The rows of the page's table of conditions."""
    rows = PAGE[PAGE.index("| run | `build`") :].split("\n\n")[0].splitlines()
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows[2:]]


@pytest.mark.parametrize("row", table())
def test_conditions_end_as_the_table_says(row):
    name, *expected, conclusion = row
    found, outcome = ended("Conditions", "" if name == "all succeed" else name.split("`")[0])
    words = {DONE: "success", "failed": "failure", SKIPPED: "skipped", NOT_NEEDED: "skipped"}
    assert ([words[state] for state in found.values()], outcome) == (expected, conclusion)


def test_runs_of_a_group_begin_in_their_order():
    runs = [run("One at a time") for _ in range(3)]
    other = run("One at a time", head_ref="refs/heads/other")
    assert [reread(one).hold for one in [*runs, other]] == ["", "concurrency", "concurrency", ""]
    runner, order = Runner(), []
    while (job := runner.claim()) is not None:
        order.append(job.batch_id)
        runner.end("deploy")
    assert [batch for batch in order if batch != other.batch_id] == [one.batch_id for one in runs]
    assert Job.objects.filter(git_commit=COMMIT, state=DONE).count() == 4
