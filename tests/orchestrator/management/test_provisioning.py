"""`manage.py organization`, `project`, `pool`, `worker` and `plan`: what Delta's runner needs, without a browser."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from orchestrator.services.submission import submit
from runtime_jobs.errors import PriorityForbidden
from runtime_jobs.models import OperatorEvent, Organization, Plan, Project
from runtime_jobs.plans import plan_of_tier
from runtime_jobs.priorities import PRIORITIES
from tests.factories import ALICE, POLICY, spec, submission
from workers.models import Pool, Worker
from workers.registry.tokens import digest_of

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    output = io.StringIO()
    call_command(*arguments, stdout=output, stderr=io.StringIO())
    return output.getvalue()


def test_what_the_runner_of_delta_needs_is_created_and_recorded():
    plan_of_tier("team")
    run("organization", "add", "acme", "--plan", "team", "--hosted-runtime-analysis")
    run("pool", "add", "local", "--isolation", "none", "--unauthenticated-runners", "--trace", "none")
    project_of = ("--pool", "local", "--repository", "acme/web", "--trace", "network")
    assert run("project", "add", "acme/web", *project_of) == "project acme/web\n"
    printed = json.loads(run("worker", "register", "--name", "w-1", "--pool", "local", "--capabilities", "linux",
                             "--labels", "a,b", "--output", "json"))  # fmt: skip
    project, pool, worker = Project.objects.get(), Pool.objects.get(slug="local"), Worker.objects.get()
    assert (project.organization.plan.name, project.enabled, project.pool) == ("team", True, "local")
    assert (pool.least_isolation, pool.trusts_lease_ids) == ("none", True)
    assert (project.trace, pool.trace) == ("network", "none")
    assert (worker.worker_id, worker.digest) == (printed["worker_id"], digest_of(printed["token"]))
    assert (worker.pool, worker.labels, worker.capabilities) == (pool, ["a", "b"], ["linux"])
    found = OperatorEvent.objects.order_by("id").values_list("action", "target")
    assert list(found) == [
        ("organization.created", "organization:acme"), ("pool.created", "pool:local"),
        ("project.created", "project:acme/web"), ("worker.registered", worker.worker_id),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("organization", "add", "A b"), "slug"), (("organization", "add", "a", "--plan", "x"), "--plan"),
        (("pool", "add", "A b"), "slug"), (("pool", "add", "taken"), "slug"), (("project", "add", "web"), "ORG/PROJECT"),
        (("project", "add", "nowhere/web"), "ORG"), (("project", "add", "acme/web", "--pool", "x"), "--pool"),
        (("project", "add", "acme/A"), "slug"), (("worker", "register", "--name", "w", "--pool", "x"), "--pool"),
        (("worker", "register", "--name", "W 1", "--pool", "taken"), "slug"),
        (("worker", "register", "--name", "w", "--pool", "taken", "--capacity", "0"), "capacity"),
        (("plan", "change", "x", "--priority", "high"), "NAME"),
    ],
)  # fmt: skip
def test_what_is_not_valid_is_named_in_one_line(arguments, named):
    Organization.objects.create(slug="acme", plan=plan_of_tier("team"))
    Pool.objects.create(slug="taken")
    before = OperatorEvent.objects.count(), Pool.objects.count(), Project.objects.count(), Worker.objects.count()
    with pytest.raises(CommandError) as refusal:
        run(*arguments)
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)
    after = OperatorEvent.objects.count(), Pool.objects.count(), Project.objects.count(), Worker.objects.count()
    assert after == before


def test_a_refused_priority_names_the_command_that_permits_it():
    Plan.objects.create(name="small")
    run("organization", "add", "acme", "--plan", "small", "--hosted-runtime-analysis")
    run("project", "add", "acme/web", "--repository", "cc-consulting-nv/web")
    given = submission(Project.objects.get(), spec(), priority=PRIORITIES["high"])
    arguments = {"policy": POLICY, "default_pool": "shared-linux", "actor": ALICE}
    with pytest.raises(PriorityForbidden) as refusal:
        submit(given, **arguments)
    command = "plan change small --priority"
    for part in ("the plan small allows at most normal", f"manage.py {command}"):
        assert part in refusal.value.message
    assert run(*command.split(), "high") == "plan small: high\n"
    assert submit(given, **arguments).job.priority == PRIORITIES["high"]
    assert OperatorEvent.objects.get(action="plan.changed").after == {"priority": PRIORITIES["high"]}
