"""Validation of submits: every limit from both sides, and refusal of what a shell, git or a sandbox could misread."""

import copy

import pytest

from runtime_jobs.models import Job
from tests.api_client import refused
from tests.factories import COMMIT, SUBMIT_BODY, OrganizationFactory, PlanFactory, ProjectFactory

pytestmark = pytest.mark.django_db
JOBS = "/v1/runtime/jobs"


def body(**changes):
    """The example with changes such as `source__ref="x"`; `...` takes a field away."""
    made = copy.deepcopy(SUBMIT_BODY)
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = made
        for parent in parents:
            place = place[parent]
        if value is ...:
            del place[name]
        else:
            place[name] = value
    return made


def wrong(field, *values):
    return [pytest.param(field, value, id=f"{field}={value!r:.60}") for value in values]


GIT = "https://github.com/cc-consulting-nv/web.git"
REFUSED = [
    *wrong("execution__command", [], [""], ["  "], ["a"] * 65, ["a" * 1025], ["a", "b" * (1 << 19)]),
    *wrong("execution__working_directory", "", "/etc", "..", "a/../../b", "../a", "a/..", "a" * 1025),
    *wrong("execution__timeout_seconds", 0, -1, 10**12, 2**31),
    *wrong("source__repo_url", "", "ext::sh -c x", "file:///etc", "/etc", "git://github.com/cc-consulting-nv/web.git"),
    *wrong("source__repo_url", "ssh://github.com/cc-consulting-nv/web.git", GIT.replace("https", "http"), "fd::7"),
    *wrong("source__repo_url", "git@github.com:cc-consulting-nv/web.git", "--upload-pack=x", f" {GIT}", f"{GIT} "),
    *wrong("source__repo_url", GIT.replace("//", "//user:pw@"), GIT.replace("//", "//user@"), f"{GIT}\n", f"{GIT}\r\nX: y"),
    *wrong("source__repo_url", "https://github.com@evil.example/cc-consulting-nv/web.git", GIT.upper(), "HTTPS" + GIT[5:]),
    *wrong("source__repo_url", "https://github.com.evil.example/cc-consulting-nv/web.git", GIT.replace(".com", ".com:22")),
    *wrong("source__repo_url", GIT.replace(".com", ".com:443"), GIT.replace("github", "GITHUB"), GIT.replace("i", "і")),  # noqa: RUF001
    *wrong("source__repo_url", GIT.replace("web", "%2e%2e"), GIT.replace("/web.git", "/../web.git"), f"{GIT}?a=b"),
    *wrong("source__repo_url", f"{GIT}#a", f"{GIT}/", GIT.replace("nv/web", "nv//web"), GIT.replace("web.git", "other.git")),
    *wrong("source__repo_url", "https://127.0.0.1/cc-consulting-nv/web", "https://[::1]/cc-consulting-nv/web", "https://"),
    *wrong("source__repo_url", "https://[::1", "https://[github.com/cc-consulting-nv/web", "https://github.com]/a/b"),
    *wrong("source__repo_url", "https://[::ffff:127.0.0.1]/cc-consulting-nv/web", "https://2130706433/cc-consulting-nv/web"),
    *wrong("source__repo_url", "https://169.254.169.254/cc-consulting-nv/web", "https:\\\\github.com\\cc-consulting-nv\\web"),
    *wrong("source__repo_url", GIT.replace("/web", "/../../web"), "https://github.com\\@evil/cc-consulting-nv/web.git"),
    *wrong("source__owner", "", "..", "a/b", "-x", "a b", "x" * 101, "ö", "other", "cc-consulting-nv\n"),
    *wrong("source__repo", "", "..", ".", "a/b", "--x", "a b", "x" * 101, "other", "web\n"),
    *wrong("source__git_commit", "", "HEAD", "main", COMMIT[:39], COMMIT + "0", COMMIT.upper(), "--upload-pack=x"),
    *wrong("source__git_commit", "0" * 40, "0" * 64, COMMIT + "\n", f" {COMMIT[:39]}", "c" * 63, "１" * 40),  # noqa: RUF001
    *wrong("source__ref", "", "--orphan", "-x", "refs/heads/../x", "a..b", "@{-1}", "a@{1}", "a\tb", "a b", "x" * 4096),
    *wrong("source__ref", "/a", "a/", "a//b", "a.lock", "a/.b", "a.", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", "a\x7f"),
    *wrong("source__pull_request_number", 0, -1, 2**63),
    *wrong("source__kind", "", "gitlab", "GitHub", "github "),
    *wrong("trigger__kind", "", "push", "Manual", "cron"),
    *wrong("trigger__actor", "x" * 201),
    *wrong("org_slug", "", "a b", "A", "-a", "sandtrace\n", "x" * 64, "../x", "sandtrace "),
    *wrong("project_slug", "", "a b", "A", "web\n", "x" * 64),
    *wrong("execution__allow_network", None),
    *wrong("source", None, {}),
    *wrong("execution", None, {}),
    *wrong("trigger", None, {}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_what_is_out_of_bounds_is_refused_by_name(alice, field, value):
    sent = body(**{field: value})
    errors = refused(lambda: alice.post(JOBS, sent), 400, "invalid")["errors"]
    parts = field.split("__")
    assert any(name.startswith(".".join(parts)) or name == f"{parts[0]}.repo_url" for name in errors), errors


TAKEN = {
    "a command that looks like options": {"execution__command": ["-c", "--args", "--bind", "/", "/"]},
    "64 words of 1024": {"execution__command": ["a" * 1024] * 64},
    "words that are empty or odd": {
        "execution__command": ["sh", "-c", "", "\n", "💩", "$(x)", "`x`", "; rm -rf /", "\x1b[31m"]
    },
    "a directory inside": {"execution__working_directory": "packages/web"},
    "a directory of 1024": {"execution__working_directory": "a" * 1024},
    "the plan's whole time": {"execution__timeout_seconds": 900},
    "one second": {"execution__timeout_seconds": 1},
    "no .git": {"source__repo_url": GIT.removesuffix(".git")},
    "a SHA-256": {"source__git_commit": "c" * 64},
    "no ref": {"source__ref": None},
    "ref left out": {"source__ref": ...},
    "the largest number": {"source__pull_request_number": 2**63 - 1},
    "no pull request": {"source__pull_request_number": ...},
    "no actor": {"trigger__actor": ...},
    "manual": {"trigger__kind": "manual"},
    "the defaults": dict.fromkeys(
        ("execution__working_directory", "execution__allow_network", "execution__allow_exec"), ...
    ),
}


@pytest.mark.parametrize("changes", TAKEN.values(), ids=TAKEN)
def test_what_is_within_bounds_is_taken_as_it_is(alice, changes):
    created = alice.post(JOBS, body(**changes))
    assert created.status_code == 201, created.content
    job = Job.objects.get()
    assert created["Location"] == f"{JOBS}/{job.job_ulid}"
    if "execution__command" in changes:
        assert created.json()["execution"]["command"] == job.command_json == changes["execution__command"]


def test_nothing_is_allowed_that_was_not_asked_for(alice):
    alice.post(JOBS, body(execution__allow_network=...))
    assert Job.objects.get().allow_network is False


def test_the_plan_bounds_the_timeout(alice):
    document = refused(lambda: alice.post(JOBS, body(execution__timeout_seconds=901)), 400, "timeout_above_plan")
    assert document["max_timeout_seconds"] == 900


def test_the_feature_the_project_and_the_repository_are_each_asked_for(alice, organization):
    project = organization.projects.get()
    elsewhere = body(source__repo_url="https://github.com/cc-consulting-nv/api.git", source__repo="api")
    refused(lambda: alice.post(JOBS, elsewhere), 403, "repository_not_allowed")
    refused(lambda: alice.post(JOBS, body(project_slug="nothing")), 403, "project_not_enabled")
    project.enabled = False
    project.save()
    refused(lambda: alice.post(JOBS, SUBMIT_BODY), 403, "project_not_enabled")
    organization.hosted_runtime_analysis = False
    organization.save()
    refused(lambda: alice.post(JOBS, SUBMIT_BODY), 403, "feature_not_enabled")


def test_another_organizations_project_of_the_same_name_opens_nothing(alice, organization):
    organization.projects.all().delete()
    ProjectFactory(organization=OrganizationFactory(slug="other", plan=PlanFactory()))
    refused(lambda: alice.post(JOBS, SUBMIT_BODY), 403, "project_not_enabled")


def test_an_owner_with_a_star_allows_all_of_an_owners_repositories_and_no_others(alice, organization):
    project = organization.projects.get()
    project.repositories = ["cc-consulting-nv/*"]
    project.save()
    assert alice.post(JOBS, SUBMIT_BODY).status_code == 201
    other = body(source__repo_url="https://github.com/cc-consulting-nvx/web.git", source__owner="cc-consulting-nvx")
    refused(lambda: alice.post(JOBS, other), 403, "repository_not_allowed")


def test_the_operator_may_allow_another_host(alice, settings):
    settings.REPOSITORY_HOSTS = ["github.com", "git.example"]
    assert alice.post(JOBS, body(source__repo_url=GIT.replace("github.com", "git.example"))).status_code == 201
