"""Deliveries for repositories with workflows: stored at once, one event for each, and a command wins."""

import pytest

from orchestrator.protocols.github.models import Outcome, WebhookDelivery
from runtime_jobs.models import Job, Repository, WorkflowTrigger
from tests.orchestrator.protocols.github.conftest import deliver, new_secret, payload, ready

pytestmark = pytest.mark.django_db
COMMIT = "c13aa82903ea336cf3f21bdf2d930dc1a41f65cf"


@pytest.fixture
def repository(db):
    project = ready(configured_command=[])
    return Repository.objects.create(
        project=project, owner="CC-Consulting-nv", name="web", origin="https://github.com/cc-consulting-nv/web"
    )


@pytest.fixture
def secret(repository):
    return new_secret(repository.project)


def outcomes():
    return list(WebhookDelivery.objects.order_by("pk").values_list("outcome", flat=True))


def test_a_push_is_stored_for_the_workflows(repository, secret):
    answer = deliver("push.branch", secret)
    assert (answer.status_code, answer.content) == (202, b"")
    trigger = WorkflowTrigger.objects.get()
    assert (trigger.repository, trigger.event, trigger.head_sha) == (repository, "push", COMMIT)
    body = payload("push.branch")
    assert trigger.trigger_id == f"push:refs/heads/main:{body['before']}:{COMMIT}"
    commit = body["head_commit"]
    author = commit.get("author", {}).get("name", "")
    assert trigger.facts["payload"] == {
        "ref": "refs/heads/main",
        "before": body["before"],
        "after": COMMIT,
        "head_commit": {"id": commit["id"], "message": commit["message"], "author": author},
    }
    assert (trigger.facts["actor_name"], trigger.facts["base_sha"]) == ("maria-k", body["before"])
    delivery = WebhookDelivery.objects.get()
    assert (delivery.outcome, delivery.git_commit) == (Outcome.ACCEPTED, COMMIT)
    assert not Job.objects.exists()


def test_a_push_that_is_delivered_twice_is_one_event(repository, secret):
    same = {"X-GitHub-Delivery": "d1"}
    deliver("push.branch", secret, changes=same)
    assert deliver("push.branch", secret, changes=same).status_code == 202
    assert outcomes() == ["accepted"]
    deliver("push.branch", secret)
    assert outcomes() == ["accepted", "duplicate"]
    assert WorkflowTrigger.objects.count() == 1


def test_tags_start_workflows(repository, secret):
    answer = deliver("push.tag", secret)
    assert answer.status_code == 202, answer.content
    assert WorkflowTrigger.objects.get().facts["ref"].startswith("refs/tags/")


@pytest.mark.parametrize(
    ("name", "from_fork"), [("pull_request.opened", False), ("pull_request.fork", True), ("pull_request.closed", False)]
)
def test_a_pull_request_is_stored_with_its_action(repository, secret, name, from_fork):
    assert deliver(name, secret).status_code == 202
    trigger, body = WorkflowTrigger.objects.get(), payload(name)
    request = body["pull_request"]
    assert trigger.trigger_id == f"pr_{body['action']}:{body['number']}:{request['head']['sha']}"
    assert trigger.facts["from_fork"] is from_fork
    assert (trigger.facts["action"], trigger.facts["base_branch"]) == (body["action"], request["base"]["ref"])
    assert trigger.facts["payload"]["pull_request"] == {
        "title": request["title"],
        "head": {"ref": request["head"]["ref"], "sha": request["head"]["sha"]},
        "base": {"ref": request["base"]["ref"], "sha": request["base"]["sha"]},
        "user": {"login": request["user"]["login"]},
    }


@pytest.mark.parametrize("name", ["ping", "push.deleted"])
def test_other_events_are_ignored(repository, secret, name):
    assert deliver(name, secret).status_code == 202
    assert outcomes() == ["ignored"]
    assert not WorkflowTrigger.objects.exists()


def test_a_configured_command_wins(repository, secret):
    repository.project.configured_command = ["true"]
    repository.project.save()
    assert deliver("push.branch", secret).status_code == 201
    assert outcomes() == ["created"]
    assert not WorkflowTrigger.objects.exists()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("after",), "x"),
        (("before",), 5),
        (("head_commit", "id"), "x"),
        (("head_commit", "message"), {}),
        (("ref",), "refs/heads/.."),
    ],
)
def test_a_payload_that_github_does_not_send_is_refused(repository, secret, path, value):
    body = payload("push.branch")
    target = body
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = value
    answer = deliver("push.branch", secret, body=body)
    assert answer.status_code == 400
    assert not WorkflowTrigger.objects.exists()
    assert not WebhookDelivery.objects.exists()
