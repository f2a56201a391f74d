"""ESC and bidirectional controls in text that people read: refused in names, kept in commands, spelled out on pages."""

import copy

import pytest
from django.contrib.auth.models import User
from django.test import Client

from orchestrator.devtools.demo.terminal import Terminal
from orchestrator.protocols.github.wire import parse_event
from runtime_jobs.control_characters import escape_controls, wrong_label
from runtime_jobs.errors import Invalid
from runtime_jobs.models import Job
from tests.api_client import refused
from tests.factories import SUBMIT_ANY_BODY, SUBMIT_BODY, claimed, submitted
from tests.orchestrator.protocols.github.conftest import payload

ESC, OVERRIDE = "\x1b]0;owned\x07", "ad\u202enim"
NASTY = [ESC, OVERRIDE, "a\nb", "a\x7f", "a\x9b31m", "a\u2066b", "a\u200fb", "a\u2028b", "a\rb"]
RUNTIME, ANY, LEASES, LIMITS = "/v1/runtime/jobs", "/v1/jobs", "/v1/runtime/leases", "/v1/limits"


def with_(body, path, value):
    """The body with another value at a dotted path."""
    made = copy.deepcopy(body)
    inner = made
    *way, last = path.split(".")
    for step in way:
        inner = inner.setdefault(step, {})
    inner[last] = value
    return made


@pytest.mark.django_db
@pytest.mark.parametrize("text", NASTY)
def test_the_actor_of_a_trigger_is_refused_with_the_character_and_its_place(alice, text):
    problem = refused(lambda: alice.post(RUNTIME, with_(SUBMIT_BODY, "trigger.actor", text)), 400, "invalid")
    [message] = problem["errors"]["trigger.actor"]
    assert "control characters and bidirectional formatting characters are not allowed" in message
    place, code = int(message.split()[1]), int(message.split("U+")[1][:4], 16)
    assert ord(text[place - 1]) == code
    assert not Job.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("body", "path", "value"),
    [
        (SUBMIT_BODY, "concurrency", {"key": OVERRIDE}),
        (SUBMIT_BODY, "source.ref", f"refs/heads/{OVERRIDE}"),
        (SUBMIT_BODY, "source.ref", "refs/heads/a\x9b31m"),
        (SUBMIT_BODY, "execution.working_directory", ESC),
        (SUBMIT_ANY_BODY, "spec.working_directory", OVERRIDE),
        (SUBMIT_ANY_BODY, "spec.name", OVERRIDE),
        (SUBMIT_ANY_BODY, "spec.caches", [{"type": "deps", "key": OVERRIDE, "paths": ["a"]}]),
        (SUBMIT_ANY_BODY, "spec.caches", [{"type": "deps", "key": "a", "paths": [ESC]}]),
        (SUBMIT_ANY_BODY, "spec.artifacts", [{"path": OVERRIDE}]),
    ],
)
def test_every_name_in_a_submit_is_refused(alice, body, path, value):
    problem = refused(
        lambda: alice.post(RUNTIME if body is SUBMIT_BODY else ANY, with_(body, path, value)), 400, "invalid"
    )
    assert all(name.startswith(path) for name in problem["errors"])


@pytest.mark.django_db
@pytest.mark.parametrize(
    "more", [{"labels": [OVERRIDE]}, {"capabilities": {ESC: True}}, {"job_types": ["runtime", OVERRIDE]}]
)
def test_what_a_worker_offers_is_refused(wendy, worker, more):
    refused(lambda: wendy.post(LEASES, {"worker_id": worker.worker_id} | more), 400, "invalid")


@pytest.mark.django_db
def test_other_scripts_are_names_as_any(alice):
    for actor in ("Zoë", "山田", "שלום", "مرحبا", "💩"):
        assert alice.post(RUNTIME, with_(SUBMIT_BODY, "trigger.actor", actor)).status_code == 201


@pytest.mark.django_db
def test_a_command_is_kept_as_it_is(alice):
    """A changed command would be another command."""
    command = ["printf", ESC, OVERRIDE]
    assert (
        alice.post(RUNTIME, with_(SUBMIT_BODY, "execution.command", command)).json()["execution"]["command"] == command
    )


@pytest.mark.parametrize("text", [OVERRIDE, "a\x9b31m"])
def test_a_ref_that_github_sends_is_refused(text):
    body = payload("push.branch") | {"ref": f"refs/heads/{text}"}
    with pytest.raises(Invalid):
        parse_event("push", body, hosts=["github.com"])
    assert parse_event("push", payload("push.branch"), hosts=["github.com"]).kind == "push"


@pytest.mark.django_db
def test_a_cancel_reason_is_spelled_out(alice, organization):
    job = submitted(organization.projects.get())
    alice.post(f"{RUNTIME}/{job.job_ulid}/cancel", {"reason": f"{ESC}\n{OVERRIDE}\t\u2028"})
    job.refresh_from_db()
    assert job.cancel_message == "\\x1b]0;owned\\x07\nad\\u202enim\t\\u2028"


@pytest.mark.django_db
def test_pages_spell_out_what_is_stored_wherever_it_came_from(organization, worker):
    """Rows of before, and commands, which are kept."""
    job = submitted(organization.projects.get())
    Job.objects.filter(pk=job.pk).update(trigger_actor=OVERRIDE, git_ref=f"{ESC}ref")
    claimed()
    browser = Client()
    browser.force_login(User.objects.create(username="chief", is_staff=True, is_superuser=True))
    for path in (f"/admin/runtime_jobs/job/{job.job_ulid}/change/", "/admin/runtime_jobs/job/"):
        text = browser.get(path).content.decode()
        assert set(text) & {"\x1b", "\x07", "\u202e", "\u2066", "\x9b"} == set(), path
    text = browser.get(f"/admin/runtime_jobs/job/{job.job_ulid}/change/").content.decode()
    assert "ad\\u202enim" in text
    assert "\\x1b]0;owned\\x07ref" in text


def test_findings_do_not_steer_the_terminal(capsys):
    item = {"severity": "high", "rule": ESC, "reason": OVERRIDE, "detail": ESC, "count": 1}
    process = {"pid": 1, "parent_pid": None, "command": ESC, "exec_paths": [], "rules": [ESC, OVERRIDE]}
    screen = Terminal()
    screen.findings({"suspicious_activity": {"items": [item]}})
    screen.processes({"processes": {"items": [process], "total": 1}})
    assert set(capsys.readouterr().out) & {"\x1b", "\x07", "\u202e"} == set()


def test_text_keeps_lines_and_the_marks_of_right_to_left_prose():
    assert escape_controls("a\n\tb\u200fשלם\u200e") == "a\n\tb\u200fשלם\u200e"
    assert wrong_label("plain") is None
    assert wrong_label("a\u200f").startswith("Character 2 is U+200F: ")
