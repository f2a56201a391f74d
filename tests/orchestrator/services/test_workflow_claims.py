"""A runner receives a claimed job with the values that it does not know, and without skipped steps."""

from dataclasses import replace

import pytest

from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.workflows.claims import prepare_job, skip_false_steps
from runtime_jobs.db_time import database_now
from runtime_jobs.models import JobStep
from tests.workflow_runs import Runner, job_of, started, workflow_text

pytestmark = pytest.mark.django_db


def prepared(steps, *, env="{}", stops_at_failure=True, variables=None, secrets=None, **changes):
    """The job as prepared, and its steps in order."""
    run = started(workflow_text({"a": {"steps": steps, "env": env}}), **changes)
    job = job_of(run, "a")
    rows = list(JobStep.objects.filter(job=job).order_by("index"))
    found = prepare_job(
        run, job, rows, secrets=secrets or {}, variables=variables or {}, stops_at_failure=stops_at_failure
    )
    return found, rows


def test_variables_and_the_actor_are_put_in():
    steps = """
      - run: echo ${{ vars.region }} ${{ github.actor }} ${{ secrets.KEY }} ${{ shithub.event.ref }}
        env: {A: "${{ vars.REGION }}"}
      - uses: actions/checkout@v4
        with: {fetch-depth: "${{ vars.DEPTH }}"}
        working-directory: src/${{ vars.REGION }}"""
    found, (script, checkout) = prepared(
        steps, env='{R: "${{ vars.REGION }}", K: "${{ secrets.KEY }}"}', variables={"Region": "e'u", "depth": "0"}
    )
    assert found.env == {"R": "${{ 'e''u' }}", "K": "${{ secrets.KEY }}"}
    assert found.steps[script.pk].run == (
        "echo ${{ 'e''u' }} ${{ 'alice' }} ${{ secrets.KEY }} ${{ shithub.event.ref }}"
    )
    assert found.steps[script.pk].env == {"A": "${{ 'e''u' }}"}
    assert found.steps[checkout.pk].with_values == {"fetch-depth": "0"}
    assert found.steps[checkout.pk].working_directory == "src/e'u"


@pytest.mark.parametrize(
    ("condition", "by_first_generation", "by_others"),
    [
        ("true", False, False),
        ("false", True, True),
        ("success()", False, False),
        ("failure()", True, False),
        ("cancelled()", True, False),
        ("always()", False, False),
        ("failure() || always()", False, False),
        ("vars.SKIP != 'yes'", True, True),
        ("vars.SKIP == 'yes'", False, False),
        ("secrets.KEY == 'k'", False, False),
        ("secrets.KEY == 'x'", True, True),
        ("secrets.MISSING == 'x'", False, False),
        ("env.STAGE == 'one'", False, False),
        ("env.STAGE == 'two'", True, True),
        ("env.OWN == 'mine'", False, False),
        ("env.MISSING", True, True),
        ("shithub.event.ref == 'refs/heads/main'", False, False),
        ("shithub.event.ref == 'refs/heads/x'", True, True),
        ("failure() && vars.SKIP == 'no'", True, True),
    ],
)
def test_a_step_is_skipped_if_its_condition_is_decidably_false(condition, by_first_generation, by_others):
    step = f'[{{run: x, if: "{condition}", env: {{OWN: mine}}}}]'
    for stops, expected in ((True, by_first_generation), (False, by_others)):
        found, (row,) = prepared(
            step, env='{STAGE: "${{ vars.STAGE }}"}', stops_at_failure=stops,
            variables={"SKIP": "yes", "STAGE": "one"}, secrets={"KEY": "k"},
        )  # fmt: skip
        assert (found.skipped == (row.pk,)) is expected


def test_skipped_steps_are_recorded():
    found, rows = prepared("[{run: x, if: 'false'}, {run: y}]")
    job = Runner().claim()
    skip_false_steps(UnitOfWork(), job, found, now=database_now())
    assert [(step.status, step.conclusion) for step in JobStep.objects.filter(job=job).order_by("index")] == [
        ("skipped", "skipped"), ("queued", None),
    ]  # fmt: skip
    assert found.skipped == (rows[0].pk,)


def test_a_later_claim_opens_steps_again_whose_condition_is_not_false_any_more():
    step = "[{run: x, if: \"vars.RUN == 'yes'\"}, {run: y, if: 'false'}]"
    skipped, _ = prepared(step)
    job = Runner().claim()
    skip_false_steps(UnitOfWork(), job, skipped, now=database_now())
    rows = JobStep.objects.filter(job=job).order_by("index")
    assert [row.status for row in rows.all()] == ["skipped", "skipped"]
    job.fence = 2
    due = replace(skipped, skipped=skipped.skipped[1:])
    skip_false_steps(UnitOfWork(), job, due, now=database_now())
    assert [(row.status, row.conclusion, row.completed_at is None) for row in rows.all()] == [
        ("queued", None, True), ("skipped", "skipped", False),
    ]  # fmt: skip


def test_a_value_that_no_expression_can_contain_fails_the_step_and_not_the_claim():
    found, (step,) = prepared("[{run: \"${{ contains(vars.A, 'x') }}\"}]", variables={"A": "}}"})
    assert found.steps[step.pk].run == "${{ unusable.value }}"
