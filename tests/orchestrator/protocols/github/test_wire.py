"""A payload becomes an event or a reason; whatever cannot be one is refused by its path."""

import copy

import pytest
from rest_framework.exceptions import ValidationError

from orchestrator.protocols.github.wire import GithubEvent, IgnoredEvent, full_name_of, parse_event
from runtime_jobs.errors import Invalid
from tests.orchestrator.protocols.github.conftest import COMMIT, DELIVERIES, payload

HOSTS = ["github.com"]


def changed(name, path, value):
    """The recorded payload with one value replaced; `path` by dots."""
    body = copy.deepcopy(payload(name))
    *way, last = path.split(".")
    place = body
    for step in way:
        place = place[step]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return body


def read(name, body=None):
    return parse_event(name.partition(".")[0], body or payload(name), hosts=HOSTS)


@pytest.mark.parametrize("action", ["opened", "synchronize", "reopened"])
def test_a_pull_request_is_its_head_in_the_base_repository(action):
    assert read(f"pull_request.{action}") == GithubEvent(
        kind="pull_request",
        action=action,
        full_name="cc-consulting-nv/web",
        repo_url="https://github.com/cc-consulting-nv/web.git",
        ref="refs/pull/98/head",
        commit=COMMIT,
        number=98,
        actor="maria-k",
        from_fork=False,
    )


def test_a_forks_pull_request_is_fetched_from_the_base_repository_too():
    event = read("pull_request.fork")
    assert (event.full_name, event.repo_url) == ("cc-consulting-nv/web", "https://github.com/cc-consulting-nv/web.git")
    assert event.from_fork


@pytest.mark.parametrize("repo", [None, KeyError, {}, {"full_name": 7}, [], {"full_name": "stranger/web"}])
def test_a_head_that_is_not_known_to_be_ours_is_a_forks(repo):
    assert read("pull_request.opened", changed("pull_request.opened", "pull_request.head.repo", repo)).from_fork


def test_a_push_is_its_branchs_new_commit():
    event = read("push.branch")
    assert (event.kind, event.ref, event.commit, event.number) == ("push", "refs/heads/main", COMMIT, None)
    assert not event.from_fork


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("push.deleted", "deleted", True),
        ("push.branch", "after", "0" * 40),
        ("push.branch", "after", ""),
        ("push.branch", "after", KeyError),
        ("push.branch", "ref", ""),
        ("push.tag", "deleted", False),
        ("pull_request.closed", "number", "nonsense"),
        ("ping", "zen", 7),
    ],
)
def test_nothing_to_run_is_ignored_with_a_reason(name, path, value):
    found = read(name, changed(name, path, value))
    assert isinstance(found, IgnoredEvent)
    assert found.reason


@pytest.mark.parametrize("kind", ["issues", "installation", "workflow_run", "x"])
def test_other_events_are_not_even_looked_at(kind):
    assert isinstance(parse_event(kind, {"repository": 7}, hosts=HOSTS), IgnoredEvent)


WRONG = [
    *[("pull_request.opened", "action", value) for value in (None, 7, [], {}, True, "a b", "x" * 65, "", KeyError)],
    *[("pull_request.opened", "number", value) for value in (None, "98", 0, -1, 98.0, True, 2**63, [], KeyError)],
    *[("pull_request.opened", "pull_request", value) for value in (None, 7, [], "x", {}, KeyError)],
    *[("pull_request.opened", "pull_request.head", value) for value in (None, 7, [], "x", {}, KeyError)],
    *[
        ("pull_request.opened", "pull_request.head.sha", value)
        for value in (
            None,
            7,
            [],
            "",
            "main",
            COMMIT.upper(),
            COMMIT[1:],
            COMMIT + "0",
            "0" * 40,
            f"{COMMIT}\n",
            KeyError,
        )
    ],
    *[
        ("push.branch", "ref", value)
        for value in (
            *(7, None, [], "refs/heads/", "refs/heads/a b", "refs/heads/a..b", "refs/heads/a\nb", "refs/heads/@{-1}"),
            *("refs/heads/x.lock", "refs/heads/a:b", "refs/heads/" + "x" * 250, "refs/heads/a\x7fb"),
        )
    ],
    *[("push.branch", "after", value) for value in (7, None, [], "main", COMMIT.upper(), COMMIT[1:], "x" * 65)],
    *[("push.branch", "deleted", value) for value in (None, 1, "false", [])],
    *[("push.branch", "repository", value) for value in (None, 7, [], "a/b", {}, KeyError)],
    *[
        ("push.branch", "repository.full_name", value)
        for value in (*(7, [], {}, "", "/", "a", "a/b/c", "cc-consulting-nv/../web", "-x/web", "a b/c", "a\0/b"), None)
    ],
    ("push.branch", "repository.full_name", "cc-consulting-nv/other"),  # the rest says web
    ("push.branch", "repository.owner.login", "somebody"),
    *[
        ("push.branch", "repository.clone_url", value)
        for value in (
            *(
                7,
                None,
                [],
                "",
                "https://evil.example/cc-consulting-nv/web.git",
                "git@github.com:cc-consulting-nv/web.git",
            ),
            *("file:///etc", "https://github.com/other/web.git", "https://x@github.com/cc-consulting-nv/web.git"),
            "https://github.com/cc-consulting-nv/web.git" + "x" * 512,
        )
    ],
]


@pytest.mark.parametrize(("name", "path", "value"), WRONG, ids=[f"{path} {value!r:.30}" for _, path, value in WRONG])
def test_what_cannot_be_is_refused(name, path, value):
    with pytest.raises((Invalid, ValidationError)):
        read(name, changed(name, path, value))


@pytest.mark.parametrize(
    "sender", [None, KeyError, 7, [], {}, {"login": 7}, {"login": ""}, {"login": "x" * 101}, {"login": "a\nb"}]
)
def test_a_sender_that_nobody_could_be_is_nobody(sender):
    assert read("push.branch", changed("push.branch", "sender", sender)).actor is None


@pytest.mark.parametrize("part", ["full_name", "name", "owner"])
def test_a_missing_part_of_the_repositorys_name_comes_from_the_others(part):
    assert (
        read("push.branch", changed("push.branch", f"repository.{part}", KeyError)).full_name == "cc-consulting-nv/web"
    )


@pytest.mark.parametrize(
    "junk",
    [
        None,
        7,
        [],
        "x",
        {"repository": {"owner": [], "name": {}}},
        {"repository": {"full_name": "a/b", "owner": {"login": ["a"]}}},
    ],
)
def test_a_glance_takes_anything(junk):
    assert full_name_of(junk) is None


def test_the_key_is_that_of_the_contract():
    """SHA-256 of repository|commit|event|number: not of the ref, not of the action."""
    assert read("pull_request.opened").key == read("pull_request.reopened").key
    other_branch = changed("push.branch", "ref", "refs/heads/other")
    assert read("push.branch").key == read("push.branch", other_branch).key
    assert read("push.branch").key != read("pull_request.opened").key
    assert read("push.branch").key == "b6656bf21003fc4c73f6920f722218118be35d6a7c8e5908d16c8678c726a6cd"
    assert read("pull_request.opened").key == "da237c2bc059cd80b25d1a57ab3ba336b47cfe11b3836c0f1625dad31f047e32"


def test_every_recorded_delivery_is_read():
    for file in DELIVERIES.glob("*.json"):
        assert isinstance(read(file.stem), GithubEvent | IgnoredEvent)
