"""The webhook of a project in the admin: its secret, displayed once, its command, and its deliveries."""

import pytest

from orchestrator.protocols.github.models import WebhookDelivery
from runtime_jobs.models import OperatorEvent, Project
from tests.orchestrator.admin.pages import address
from tests.orchestrator.protocols.github.conftest import deliver, ready

WHY = {"reason": "connect the repository"}


@pytest.fixture
def project(db):
    return ready("acme")


def page(project, name="change"):
    return address(Project, name, project.pk)


def form(project, **changes):
    values = {"enabled": "on", "repositories": "cc-consulting-nv/web", "pool": "", "least_isolation": ""}
    values |= {"configured_command": "pnpm\ninstall", "configured_directory": ".", "configured_timeout_seconds": "300"}
    values |= {"visibility": "private"}
    return values | changes


def test_a_new_secret_is_shown_once_and_counts(olga, project):
    assert "no secret yet" in olga.get(page(project)).content.decode()
    answer = olga.post(page(project, "rotate_secret"), WHY)
    secret = answer.context["token"]
    assert secret in answer.content.decode()
    assert "no-store" in answer["Cache-Control"]
    assert deliver("pull_request.opened", secret).status_code == 201
    event, row = OperatorEvent.objects.get(), WebhookDelivery.objects.get()
    assert (event.action, event.target, event.reason) == (
        "project.webhook_secret_rotated", "project:acme/web", WHY["reason"],
    )  # fmt: skip
    for path in (page(project), page(project, "rotate_secret"), address(OperatorEvent, "changelist")):
        assert secret not in olga.get(path).content.decode()
    shown = olga.get(address(WebhookDelivery, "changelist")).content.decode()
    assert row.job_ulid in shown
    assert "pull_request #98" in shown
    assert "secret generation 1" in olga.get(page(project)).content.decode()


def test_no_secret_is_made_without_a_reason_or_by_whoever_may_only_look(olga, viewer, project):
    assert olga.post(page(project, "rotate_secret"), {"reason": ""}).status_code == 400
    assert viewer.post(page(project, "rotate_secret"), WHY).status_code == 403
    assert olga.post(address(Project, "rotate_secret", 10**9), WHY).status_code == 404
    project.refresh_from_db()
    assert project.webhook_generation == 0


def test_the_configured_command_is_edited_and_leaves_an_event(olga, project):
    assert olga.post(page(project), form(project, configured_command="make\ntest")).status_code == 302
    project.refresh_from_db()
    assert project.configured_command == ["make", "test"]
    assert OperatorEvent.objects.get().after["configured_command"] == ["make", "test"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"configured_command": "x" * 1025},
        {"configured_command": "\n".join("x" * 65)},
        {"configured_directory": "/etc"},
        {"configured_directory": "a/../.."},
        {"configured_timeout_seconds": "901"},
        {"configured_timeout_seconds": "0"},
    ],
)
def test_what_no_job_could_have_is_not_configured(olga, project, wrong):
    answer = olga.post(page(project), form(project, **wrong))
    assert answer.status_code == 200
    assert list(answer.context["adminform"].form.errors) == list(wrong)
    assert not OperatorEvent.objects.exists()


def test_a_command_may_be_taken_away(olga, project):
    assert olga.post(page(project), form(project, configured_command="")).status_code == 302
    project.refresh_from_db()
    assert project.configured_command == []
