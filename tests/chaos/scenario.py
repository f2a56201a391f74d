"""The tenants of a run: one organization, a pool for jobs that need no sandbox, one for jobs that do, and runners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from config import paths
from orchestrator.core.cause import Cause
from orchestrator.repositories.mirrors import update_mirror
from orchestrator.repositories.operations import add_repository
from orchestrator.secrets.operations import set_secret
from orchestrator.services import actions_runners
from orchestrator.services.credentials import register_worker
from orchestrator.webhooks.operations import WebhookTerms, create_webhook, webhook_secret
from tests.chaos.client import Credentials
from tests.chaos.runner import Site
from tests.chaos.webhook_receiver import WebhookReceiver
from tests.chaos.workflow_runners import LABELS, ORGANIZATION, REPOSITORY, ROTATED, WORKFLOWS
from tests.factories import (
    OPERATOR,
    HardwareSpecFactory,
    OrganizationFactory,
    PoolFactory,
    ProjectFactory,
    RunnerFactory,
    api_token,
    project_key,
)
from tests.workers.agent.repositories import Repository

STEPS = ["null print=hello", "null print=again exit=0"]
QUICK = ["null", "print=hello", "sleep=0.1", "exit=3"]
SANDBOXED = ["sh", "-c", "echo hello; sleep 0.1; exit 3"]
SHARES = (24, 5, 1, 6)  # of jobs of steps, of runs without a sandbox, of runs in one, and of jobs for runners
IMAGE = "bench@sha256:" + "0123456789abcdef" * 4


SECRETS = {  # by name
    "PLAIN": "hunter2-of-the-chaos",
    "NESTED": "hunter2-of",
    "KEY": "-----BEGIN KEY-----\nq8J4nVt0b1aZ3x\nWm6YcD9pLkR2sE\n-----END KEY-----\n",
    ROTATED: "rotated-first-value",
}


def build(
    state: Path, workers: int, runners: int, workflow_runners: int, receiver: WebhookReceiver | None = None
) -> Site:
    """The last worker has the sandbox, of four or more the one before it, too. With a receiver there is a webhook."""
    home = paths.prepare_home(state)
    mirrors = home / "mirrors"
    commit = Repository(mirrors / "acme" / "web.git").commit({"name": b"x"})
    (mirrors).chmod(0o755)
    organization = OrganizationFactory(slug=ORGANIZATION)
    for slug, isolation in (("quick", "none"), ("sandboxed", "namespaces")):
        pool = PoolFactory(slug=slug)
        ProjectFactory(
            organization=organization, slug=slug, repositories=["acme/web"], pool=pool.slug, least_isolation=isolation
        )
    bench = ProjectFactory(organization=organization, slug="bench")
    spec = HardwareSpecFactory(slug="two-cores")
    racks = [RunnerFactory(slug=f"rack-{number}", specs=[spec]) for number in range(1, runners + 1)]
    kinds = (steps(), body("quick", commit, QUICK), body("sandboxed", commit, SANDBOXED), run(spec.slug))
    bodies = [kind for kind, share in zip(kinds, SHARES, strict=True) for _ in range(share)]
    crew = [
        enrolled(state, number, sandboxed=number > workers - max(workers // 2, 1)) for number in range(1, workers + 1)
    ]
    if receiver is not None:
        terms = WebhookTerms(url=receiver.url)
        webhook, _ = create_webhook(organization=organization, terms=terms, cause=Cause(OPERATOR))
        receiver.secret = webhook_secret(webhook)
    credentials = Credentials(api_token(organization), project_key(bench))
    return Site(
        credentials,
        bodies,
        crew,
        [(rack.slug, rack.token) for rack in racks],
        workflow_site(state, organization, workflow_runners) if workflow_runners else [],
        # The lines that are common to all keys are no secret by themselves.
        {line.encode() for value in SECRETS.values() for line in value.splitlines() if "KEY-----" not in line},
    )


def workflow_site(state: Path, organization: Any, runners: int) -> list[str]:
    """Create a repository with workflow files, secrets, and runners. Returns the registration tokens of these."""
    origin = Repository(state / "origins" / "ci.git")
    origin.commit({path: text.encode() for path, text in WORKFLOWS.items()})
    pool = PoolFactory(slug="workflows")
    project = ProjectFactory(organization=organization, slug="workflows", pool=pool.slug)
    repository = add_repository(
        project=project, full_name=REPOSITORY, origin=str(origin.path), is_private=True, cause=Cause(OPERATOR)
    )
    update_mirror(repository)
    for name, value in SECRETS.items():
        set_secret(organization=organization, repository=None, name=name, value=value, cause=Cause(OPERATOR))
    return [
        actions_runners.register_runner(
            name=f"workflow-runner-{number}", labels=LABELS, pool=pool.slug, cause=Cause(OPERATOR)
        )[2]
        for number in range(1, runners + 1)
    ]


def enrolled(state: Path, number: int, *, sandboxed: bool) -> tuple[str, Path, list[str]]:
    pool, engine, capacity = ("sandboxed", "bubblewrap", 2) if sandboxed else ("quick", "null", 4)
    worker, token = register_worker(
        slug=f"worker-{number}",
        pool=PoolFactory(slug=pool),
        capacity=capacity,
        labels=[],
        capabilities=[],
        cause=Cause(OPERATOR),
    )
    file = state / f"worker-{number}.token"
    file.touch(mode=0o600)
    file.write_text(f"{token}\n{worker.worker_id}\n")
    return worker.slug, file, ["--pool", pool, "--engine", engine, "--capacity", str(capacity)]


def steps() -> dict[str, Any]:
    """A job without a repository: cheap, so that there may be thousands."""
    return {
        "org_slug": "chaos",
        "project_slug": "quick",
        "job_type": "steps",
        "spec": {"name": "chaos", "steps": STEPS, "timeout_seconds": 60},
        "trigger": {"kind": "manual"},
    }


def body(project: str, commit: str, command: list[str]) -> dict[str, Any]:
    source = {"kind": "github", "repo_url": "https://github.com/acme/web.git", "owner": "acme", "repo": "web"}
    return {
        "org_slug": "chaos",
        "project_slug": project,
        "source": source | {"ref": "refs/heads/main", "git_commit": commit},
        "execution": {"working_directory": ".", "command": command, "timeout_seconds": 60, "allow_network": False},
        "trigger": {"kind": "manual"},
    }


def run(spec: str) -> dict[str, Any]:
    """A benchmark run for a runner; no process pulls its image."""
    return {
        "project": "bench",
        "branch": "main",
        "testbed": "chaos",
        "start_time": "2026-01-01T00:00:00Z",
        "end_time": "2026-01-01T00:01:00Z",
        "results": [],
        "settings": {"adapter": "json"},
        "job": {"image": IMAGE, "spec": spec, "timeout": 120},
    }
