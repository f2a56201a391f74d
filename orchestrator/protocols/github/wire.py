"""What GitHub says, made into what we act on. Pure: a payload in, an event or a reason to do nothing out."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rest_framework import serializers

from orchestrator.http.api.fields import StrictBooleanField, StrictCharField, StrictIntegerField
from runtime_jobs import validators
from runtime_jobs.errors import Invalid

BIGINT = 2**63 - 1
ACTIONS = ("opened", "synchronize", "reopened")
BRANCHES = "refs/heads/"

S = TypeVar("S", bound=serializers.Serializer)


@dataclass(frozen=True)
class Ignored:
    """Nothing to do, and why: a word or two for the operator."""

    reason: str
    action: str = ""


@dataclass(frozen=True)
class Event:
    """A commit to run. `from_fork`: it was written by somebody who may not write to the repository itself."""

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
        return self.full_name.partition("/")[0]

    @property
    def name(self) -> str:
        return self.full_name.partition("/")[2]

    @property
    def key(self) -> str:
        """The runner's contract, section 11: what is the same by this is run once. The ref is no part of it."""
        number = "" if self.number is None else str(self.number)
        return hashlib.sha256(f"{self.full_name}|{self.commit}|{self.kind}|{number}".encode()).hexdigest()


def full_name_of(payload: Any) -> str | None:
    """`owner/name` of the payload's repository; from its parts where it is missing. None: there is none, or what is
    said of it contradicts itself. Takes anything: it is asked before the signature is checked."""
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


def normalise(kind: str, payload: dict[str, Any], *, hosts: Sequence[str]) -> Event | Ignored:
    """Raises Invalid, with what is wrong by its path."""
    if kind == "pull_request":
        return _pull_request(payload, hosts)
    if kind == "push":
        return _push(payload, hosts)
    return Ignored("ping" if kind == "ping" else "an event that makes no run")


def _pull_request(payload: dict[str, Any], hosts: Sequence[str]) -> Event | Ignored:
    action = _parsed(Action, payload)["action"]
    if action not in ACTIONS:
        return Ignored("an action that makes no run", action)
    body = _parsed(PullRequestBody, payload)
    full_name, number, head = _full_name(payload), body["number"], body["pull_request"]["head"]
    return Event(
        kind="pull_request",
        action=action,
        full_name=full_name,
        repo_url=_repo_url(payload, full_name, hosts),
        ref=f"refs/pull/{number}/head",
        commit=head["sha"],
        number=number,
        actor=_actor(payload),
        from_fork=_is_fork(payload, full_name),
    )


def _push(payload: dict[str, Any], hosts: Sequence[str]) -> Event | Ignored:
    said = _parsed(PushBody, payload)
    if said["deleted"] or not said["ref"] or not said["after"].strip("0"):
        return Ignored("nothing was pushed, or a branch deleted")
    if not said["ref"].startswith(BRANCHES):
        return Ignored("not a branch")
    full_name = _full_name(payload)
    return Event(
        kind="push",
        action="",
        full_name=full_name,
        repo_url=_repo_url(payload, full_name, hosts),
        ref=_checked("ref", said["ref"], validators.validate_ref(said["ref"])),
        commit=_checked("after", said["after"], validators.validate_commit(said["after"])),
        number=None,
        actor=_actor(payload),
        from_fork=False,
    )


class Action(serializers.Serializer):
    action = StrictCharField(max_length=64, pattern="[a-z_]+")


class Head(serializers.Serializer):
    sha = StrictCharField(check=validators.validate_commit)


class PullRequest(serializers.Serializer):
    head = Head()


class PullRequestBody(serializers.Serializer):
    number = StrictIntegerField(min_value=1, max_value=BIGINT)
    pull_request = PullRequest()


class PushBody(serializers.Serializer):
    ref = StrictCharField(required=False, default="", allow_blank=True)
    after = StrictCharField(required=False, default="", allow_blank=True, max_length=64)
    deleted = StrictBooleanField(required=False, default=False)


def _parsed(kind: type[S], payload: dict[str, Any]) -> dict[str, Any]:
    body = kind(data=payload)
    body.is_valid(raise_exception=True)
    return dict(body.validated_data)


def _checked(path: str, value: str, wrong: str | None) -> str:
    if wrong:
        raise Invalid({path: [wrong]})
    return value


def _full_name(payload: dict[str, Any]) -> str:
    found = full_name_of(payload)
    if found is None:
        raise Invalid({"repository": ["It must name one owner and one repository."]})
    return found


def _repo_url(payload: dict[str, Any], full_name: str, hosts: Sequence[str]) -> str:
    """Where it says that it can be cloned from, which is one of our hosts or nothing."""
    owner, _, name = full_name.partition("/")
    url = payload["repository"].get("clone_url", f"https://{hosts[0]}/{full_name}.git")
    if not isinstance(url, str) or len(url) > 512:
        raise Invalid({"repository.clone_url": ["A string of at most 512 characters is needed."]})
    wrong = validators.validate_repo_url(url, owner=owner, repo=name, hosts=hosts)
    return _checked("repository.clone_url", url, wrong)


def _is_fork(payload: dict[str, Any], full_name: str) -> bool:
    """The head is in another repository, or in one that is gone or not named: what is unknown counts as a fork."""
    repo = payload["pull_request"]["head"].get("repo")
    theirs = repo.get("full_name") if isinstance(repo, dict) else None
    return not isinstance(theirs, str) or theirs.lower() != full_name.lower()


def _actor(payload: dict[str, Any]) -> str | None:
    """Who did it, to be shown. A name that nobody could have is nobody's."""
    sender = payload.get("sender")
    login = sender.get("login") if isinstance(sender, dict) else None
    sane = isinstance(login, str) and 0 < len(login) <= 100 and login.isascii() and login.isprintable()
    return login if sane else None
