"""Globs and triggers: which events start runs of a workflow."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_jobs.workflows.document import (
    DispatchTrigger,
    PullRequestTrigger,
    PushTrigger,
    WorkflowTriggers,
    is_workflow_file,
)
from runtime_jobs.workflows.matching import TriggerEvent, is_triggered
from runtime_jobs.workflows.patterns import GlobPattern, PatternList
from runtime_jobs.workflows.schedules import CronSchedule


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("main", "main", True),
        ("main", "Main", False),
        ("main", "main/sub", False),
        ("main", "amain", False),
        ("", "", True),
        ("", "a", False),
        ("*", "", True),
        ("*", "anything", True),
        ("*", "with/slash", False),
        ("feature/*", "feature/foo", True),
        ("feature/*", "feature/", True),
        ("feature/*", "feature", False),
        ("feature/*", "feature/foo/bar", False),
        ("*/x", "a/x", True),
        ("*.tar.gz", "foo.tar.gz", True),
        ("*.tar.gz", "a/foo.tar.gz", False),
        ("v*.*", "v1.2.3", True),
        ("a*b*c", "axxbyybc", True),
        ("a*b*c", "axxbyyb", False),
        ("**", "a/b/c", True),
        ("**", "", True),
        ("feature/**", "feature", True),
        ("feature/**", "feature/a/b", True),
        ("feature/**", "featurex", False),
        ("feature/**", "main", False),
        ("**/*.go", "main.go", True),
        ("**/*.go", "pkg/sub/x.go", True),
        ("**/*.go", "pkg/sub/x.txt", False),
        ("docs/**/*.md", "docs/x.md", True),
        ("docs/**/*.md", "docs/a/b/x.md", True),
        ("docs/**/*.md", "src/x.md", False),
        ("docs/**/x", "docsx", False),
        ("a**b", "a/x/b", True),
        ("a***b", "a/x/b", True),
        ("**/", "a/", True),
        ("**/", "", True),
        ("/**/**/x", "/x", True),
        ("a/**/**/b", "a/b", True),
        ("a/**/**/b", "a/x/y/b", True),
        ("[ab]?+.", "[ab]?+.", True),
        ("[ab]", "a", False),
        ("ä*", "äb", True),
    ],
)
def test_a_pattern_matches(pattern, text, matches):
    assert GlobPattern(pattern).matches(text) is matches


def as_regex(pattern):
    """The pattern as a regular expression: slow, and plain enough to be right."""
    parts = re.split(r"(/\*\*|\*\*/|\*\*|\*)", pattern)
    special = {"/**": "(?:/.*)?", "**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    return re.compile("".join(special.get(part) or re.escape(part) for part in parts), re.DOTALL)


@given(st.text(alphabet="ab/*", max_size=8), st.text(alphabet="ab/", max_size=8))
def test_a_pattern_matches_as_its_regular_expression(pattern, text):
    assert GlobPattern(pattern).matches(text) is bool(as_regex(pattern).fullmatch(text))


def test_no_pattern_takes_long():
    """As a regular expression, this pattern takes minutes."""
    pattern, text = GlobPattern("*a" * 40 + "b"), "a" * 4000
    began = time.process_time()
    assert not pattern.matches(text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("patterns", "text", "included"),
    [
        ([], "x", False),
        (["main"], "main", True),
        (["main"], "x", False),
        (["a", "b"], "b", True),
        (["feature/**", "!feature/skip"], "feature/foo", True),
        (["feature/**", "!feature/skip"], "feature/skip", False),
        (["!feature/skip", "feature/**"], "feature/skip", True),
        (["feature/**", "!feature/skip", "feature/skip"], "feature/skip", True),
        (["!main"], "topic", True),
        (["!main"], "main", False),
        (["!a*", "!b*"], "c", True),
        (["!a*", "!b*"], "bc", False),
        (["!a", "b"], "c", False),
    ],
)
def test_the_last_pattern_that_matches_decides(patterns, text, included):
    if patterns:
        assert PatternList(tuple(patterns)).includes(text) is included
    else:
        assert PatternList().includes_any([text])


def patterns(*texts):
    return PatternList(texts)


PUSH = WorkflowTriggers(push=PushTrigger())


def push(ref, *paths):
    return TriggerEvent("push", ref=ref, changed_paths=paths)


@pytest.mark.parametrize(
    ("trigger", "event", "triggered"),
    [
        (PushTrigger(), push("refs/heads/main"), True),
        (PushTrigger(), push("refs/tags/v1"), True),
        (PushTrigger(), push("refs/notes/x"), False),
        (PushTrigger(branches=patterns("main")), push("refs/heads/main"), True),
        (PushTrigger(branches=patterns("main")), push("refs/heads/x"), False),
        (PushTrigger(branches=patterns("main")), push("refs/tags/main"), False),
        (PushTrigger(tags=patterns("v*")), push("refs/tags/v1"), True),
        (PushTrigger(tags=patterns("v*")), push("refs/heads/v1"), False),
        (PushTrigger(branches=patterns("main"), tags=patterns("v*")), push("refs/tags/v1"), True),
        (PushTrigger(branches=patterns("!main")), push("refs/heads/main"), False),
        (PushTrigger(paths=patterns("src/**")), push("refs/heads/x", "src/a.py", "README"), True),
        (PushTrigger(paths=patterns("src/**")), push("refs/heads/x", "README"), False),
        (PushTrigger(paths=patterns("src/**")), push("refs/heads/x"), False),
        (PushTrigger(paths=patterns("!docs/**")), push("refs/heads/x", "docs/a"), False),
        (PushTrigger(paths=patterns("!docs/**")), push("refs/heads/x", "docs/a", "src/a"), True),
        (PushTrigger(paths=patterns("src/**")), TriggerEvent("push", ref="refs/heads/x", changed_paths=None), True),
    ],
)
def test_a_push_triggers(trigger, event, triggered):
    assert is_triggered(WorkflowTriggers(push=trigger), event) is triggered


def pull_request(action="opened", base="main", *paths):
    return TriggerEvent("pull_request", action=action, base_branch=base, changed_paths=paths)


@pytest.mark.parametrize(
    ("trigger", "event", "triggered"),
    [
        (PullRequestTrigger(), pull_request("opened"), True),
        (PullRequestTrigger(), pull_request("synchronize"), True),
        (PullRequestTrigger(), pull_request("reopened"), True),
        (PullRequestTrigger(), pull_request("closed"), False),
        (PullRequestTrigger(types=("closed",)), pull_request("closed"), True),
        (PullRequestTrigger(types=("closed",)), pull_request("opened"), False),
        (PullRequestTrigger(branches=patterns("main")), pull_request("opened", "main"), True),
        (PullRequestTrigger(branches=patterns("main")), pull_request("opened", "next"), False),
        (PullRequestTrigger(paths=patterns("*.py")), pull_request("opened", "main", "a.py"), True),
        (PullRequestTrigger(paths=patterns("*.py")), pull_request("opened", "main", "a.c"), False),
    ],
)
def test_a_pull_request_triggers(trigger, event, triggered):
    assert is_triggered(WorkflowTriggers(pull_request=trigger), event) is triggered


def test_other_events_trigger_what_names_them():
    cron = CronSchedule.parse("0 4 * * *")
    scheduled = WorkflowTriggers(schedules=(cron,))
    assert is_triggered(scheduled, TriggerEvent("schedule", cron="0 4 * * *"))
    assert not is_triggered(scheduled, TriggerEvent("schedule", cron="0 5 * * *"))
    assert is_triggered(WorkflowTriggers(dispatch=DispatchTrigger()), TriggerEvent("workflow_dispatch"))
    for event in ("push", "pull_request", "schedule", "workflow_dispatch", "release"):
        assert not is_triggered(WorkflowTriggers(), TriggerEvent(event, ref="refs/heads/main", action="opened"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".shithub/workflows/ci.yml", True),
        (".shithub/workflows/ci.yaml", True),
        (".shithub/workflows/.yml", False),
        (".shithub/workflows/ci.json", False),
        (".shithub/workflows/a/ci.yml", False),
        (".github/workflows/ci.yml", False),
        ("ci.yml", False),
    ],
)
def test_a_workflow_file_is_found_by_its_path(path, expected):
    assert is_workflow_file(path) is expected
