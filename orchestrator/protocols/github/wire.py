"""Converts payloads of GitHub to events, and jobs to run states. Pure functions."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rest_framework import serializers

from orchestrator.protocols.github.serializers import (
    FINAL_STATES,
    ActionPayload,
    PullRequestEventPayload,
    PushEventPayload,
)
from runtime_jobs import validators
from runtime_jobs.errors import Invalid
from runtime_jobs.models import Job
from runtime_jobs.states import WAITING_STATES, FailureReason, JobState

PULL_REQUEST_ACTIONS = ("opened", "synchronize", "reopened")
BRANCH_PREFIX = "refs/heads/"
MAX_URL_LENGTH = 512
MAX_LOGIN_LENGTH = 100

S = TypeVar("S", bound=serializers.Serializer)


@dataclass(frozen=True)
class IgnoredEvent:
    """An event that starts nothing, with the reason for the operator."""

    reason: str
    action: str = ""


@dataclass(frozen=True)
class GithubEvent:
    """A commit to run. `from_fork` is true if its author may not write to the repository."""

    kind: str
    action: str
    full_name: str
    repo_url: str
    ref: str
    commit: str
    number: int | None
    actor: str | None
    from_fork: bool

    @property
    def owner(self) -> str:
        """Return the owner of the repository."""
        return self.full_name.partition("/")[0]

    @property
    def name(self) -> str:
        """Return the name of the repository."""
        return self.full_name.partition("/")[2]

    @property
    def key(self) -> str:
        """Return the key of the event: events with the same key start one run (runner's contract, section 11).

        The ref is not part of the key.
        """
        number = "" if self.number is None else str(self.number)
        return hashlib.sha256(f"{self.full_name}|{self.commit}|{self.kind}|{number}".encode()).hexdigest()


def full_name_of(payload: Any) -> str | None:
    """Return `owner/name` of the repository in the payload, from its parts if `full_name` is missing.

    Returns None if there is none, or if the fields contradict each other. Accepts any value: it is called before the
    signature is verified.
    """
    repository = payload.get("repository") if isinstance(payload, dict) else None
    if not isinstance(repository, dict):
        return None
    owner = repository.get("owner")
    login, name = owner.get("login") if isinstance(owner, dict) else None, repository.get("name")
    full = repository.get("full_name", f"{login or ''}/{name or ''}")
    parts = full.split("/") if isinstance(full, str) else []
    if len(parts) != 2 or any(validators.validate_name(part) for part in parts):
        return None
    return full if login in (None, parts[0]) and name in (None, parts[1]) else None


def parse_event(kind: str, payload: dict[str, Any], *, hosts: Sequence[str]) -> GithubEvent | IgnoredEvent:
    """Convert a payload to an event.

    Args:
        kind: Header `X-GitHub-Event`.
        payload: The signed payload.
        hosts: Hosts from which repositories may be cloned.

    Raises:
        Invalid: The payload is not what GitHub sends; `errors` has the path of each wrong field.
    """
    if kind == "pull_request":
        return _parse_pull_request(payload, hosts)
    if kind == "push":
        return _parse_push(payload, hosts)
    return IgnoredEvent("ping" if kind == "ping" else "an event that makes no run")


def _parse_pull_request(payload: dict[str, Any], hosts: Sequence[str]) -> GithubEvent | IgnoredEvent:
    action = validated(ActionPayload, payload)["action"]
    if action not in PULL_REQUEST_ACTIONS:
        return IgnoredEvent("an action that makes no run", action)
    body = validated(PullRequestEventPayload, payload)
    full_name, number, head = _full_name(payload), body["number"], body["pull_request"]["head"]
    return GithubEvent(
        kind="pull_request",
        action=action,
        full_name=full_name,
        repo_url=_repo_url(payload, full_name, hosts),
        ref=f"refs/pull/{number}/head",
        commit=head["sha"],
        number=number,
        actor=sender_login(payload),
        from_fork=is_fork(payload, full_name),
    )


def _parse_push(payload: dict[str, Any], hosts: Sequence[str]) -> GithubEvent | IgnoredEvent:
    body = validated(PushEventPayload, payload)
    if body["deleted"] or not body["ref"] or not body["after"].strip("0"):
        return IgnoredEvent("nothing was pushed, or a branch deleted")
    if not body["ref"].startswith(BRANCH_PREFIX):
        return IgnoredEvent("not a branch")
    full_name = _full_name(payload)
    return GithubEvent(
        kind="push",
        action="",
        full_name=full_name,
        repo_url=_repo_url(payload, full_name, hosts),
        ref=_require_valid("ref", body["ref"], validators.validate_ref(body["ref"])),
        commit=_require_valid("after", body["after"], validators.validate_commit(body["after"])),
        number=None,
        actor=sender_login(payload),
        from_fork=False,
    )


def validated(serializer: type[S], payload: dict[str, Any]) -> dict[str, Any]:
    """Return the validated parts of a payload.

    Raises:
        ValidationError: A field is missing or wrong.
    """
    body = serializer(data=payload)
    body.is_valid(raise_exception=True)
    return dict(body.validated_data)


def _require_valid(path: str, value: str, problem: str | None) -> str:
    if problem:
        raise Invalid({path: [problem]})
    return value


def _full_name(payload: dict[str, Any]) -> str:
    full_name = full_name_of(payload)
    if full_name is None:
        raise Invalid({"repository": ["Must name one owner and one repository."]})
    return full_name


def _repo_url(payload: dict[str, Any], full_name: str, hosts: Sequence[str]) -> str:
    """Return the clone URL of the payload, which must be on one of the allowed hosts."""
    owner, _, name = full_name.partition("/")
    url = payload["repository"].get("clone_url", f"https://{hosts[0]}/{full_name}.git")
    if not isinstance(url, str) or len(url) > MAX_URL_LENGTH:
        raise Invalid({"repository.clone_url": [f"Must be a string of at most {MAX_URL_LENGTH} characters."]})
    problem = validators.validate_repo_url(url, owner=owner, repo=name, hosts=hosts)
    return _require_valid("repository.clone_url", url, problem)


def is_fork(payload: dict[str, Any], full_name: str) -> bool:
    """Return whether the head is in another repository. A repository that is deleted or unnamed counts as a fork."""
    repo = payload["pull_request"]["head"].get("repo")
    head_name = repo.get("full_name") if isinstance(repo, dict) else None
    return not isinstance(head_name, str) or head_name.lower() != full_name.lower()


def sender_login(payload: dict[str, Any]) -> str | None:
    """Return the login of the sender, for display, or None for one that no GitHub account can have."""
    sender = payload.get("sender")
    login = sender.get("login") if isinstance(sender, dict) else None
    is_plausible = (
        isinstance(login, str) and 0 < len(login) <= MAX_LOGIN_LENGTH and login.isascii() and login.isprintable()
    )
    return login if is_plausible else None


def run_state(job: Job) -> str:
    """Return the state of the run that has this job as its newest attempt, in the terms of document 001."""
    if not job.is_final and job.cancel_requested_at is not None:
        return "CANCEL_REQUESTED"
    if job.state == JobState.FAILED and job.failure_reason == FailureReason.TIMED_OUT:
        return "TIMEOUT"
    return FINAL_STATES.get(JobState(job.state), "QUEUED" if job.state in WAITING_STATES else "RUNNING")
