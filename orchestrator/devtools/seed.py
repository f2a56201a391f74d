"""Creates one small tenant with all that a first job needs. A second run keeps what is valid and replaces the rest.

The database has only hashes of the tokens. Their plain text is in a file of mode 0600, which each run compares with
the database.
"""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from django.contrib.auth import get_user_model

from orchestrator.core.cause import Cause
from orchestrator.devtools.bencher_seed import seed_bencher
from orchestrator.devtools.demo.repository import NAME, OWNER, DemoRepository
from orchestrator.devtools.demo_image import seed_image
from orchestrator.devtools.demo_pack import seed_pack
from orchestrator.services import credentials, worker_state
from runtime_jobs.events import Actor
from runtime_jobs.models import ApiToken, Organization, Plan, Project
from runtime_jobs.models.tenants import Membership, Scope
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.secret_files import private_file
from workers.models import Pool, Worker
from workers.registry.models import registered_capabilities
from workers.registry.tokens import digest_of

SLUG = "demo"
ADMIN = "admin"
SEED = Actor("operator", "manage.py seed")


@dataclass(frozen=True)
class SeedData:
    """Holds names and secrets of the seeded tenant. `admin_password` is None once it has been changed by hand.

    The six from `admin_key` on are of the Bencher API: see `BencherSeed` and `seed_image`. The last three are those of
    `PackSeed`.
    """

    org_slug: str
    project_slug: str
    repo_url: str
    git_commit: str
    api_token: str
    worker_id: str
    worker_token: str
    admin_username: str
    admin_password: str | None
    admin_key: str = ""
    user_key: str = ""
    runner: str = ""
    runner_key: str = ""
    spec: str = ""
    image: str = ""
    pack: str = ""
    pack_version: str = ""
    plan_hash: str = ""


def seed_database(*, file: Path, pool: str, repository: DemoRepository, repo_url: str) -> SeedData:
    """Create what is missing, and write the returned data to `file`. Runs on the same file wait for each other.

    Args:
        file: The JSON file that keeps the plain tokens between two runs.
        pool: Slug of the pool of the seeded worker.
        repository: The demo's repository; its commit is part of the returned data.
        repo_url: The URL under which jobs name that repository.
    """
    with _file_lock(file):
        seed_data = _seed(_kept_values(file), pool, repository.commit, repo_url)
        write_secret_file(file, json.dumps(asdict(seed_data), indent=2))
    return seed_data


def ensure_worker(slug: str, *, pool: str, token: str | None, capacity: int = 1) -> tuple[Worker, str]:
    """Return the worker with that slug and its token: the given token if it is the worker's, else a new one."""
    worker = Worker.objects.filter(slug=slug).first()
    if worker is None:
        found, _ = Pool.objects.get_or_create(slug=pool)
        return credentials.register_worker(
            slug=slug,
            pool=found,
            capacity=capacity,
            labels=[],
            capabilities=registered_capabilities(),
            cause=Cause(SEED),
        )
    if not token or worker.digest != digest_of(token):
        token = worker_state.rotate_worker_token(
            worker_id=worker.worker_id, cause=Cause(SEED, "its file has another one")
        )
    return worker, token


def _seed(kept: dict[str, str], pool: str, commit: str, repo_url: str) -> SeedData:
    project = _project(pool)
    worker, worker_token = ensure_worker(SLUG, pool=pool, token=kept.get("worker_token"), capacity=8)
    admin_password = _admin_password(project.organization, kept)
    admin = get_user_model().objects.get(username=ADMIN)
    bencher = seed_bencher(kept, project.organization, admin=admin, actor=SEED)
    return SeedData(
        org_slug=project.organization.slug,
        project_slug=project.slug,
        repo_url=repo_url,
        git_commit=commit,
        api_token=_api_token(project.organization, kept.get("api_token")),
        worker_id=worker.worker_id,
        worker_token=worker_token,
        admin_username=ADMIN,
        admin_password=admin_password,
        **asdict(bencher),
        image=seed_image(project),
        **asdict(seed_pack(project.organization, actor=SEED)),
    )


def write_secret_file(file: Path, text: str) -> None:
    """Write a file of mode 0600 atomically."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600, exist_ok=False)
    draft.write_text(text + "\n")
    draft.replace(file)


@contextlib.contextmanager
def _file_lock(file: Path) -> Iterator[None]:
    """Serialize runs: of two at once, one would print tokens that the other has just replaced."""
    with private_file(file.with_suffix(".lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _kept_values(file: Path) -> dict[str, str]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        return dict(json.loads(file.read_text()))
    return {}


def _project(pool: str) -> Project:
    Pool.objects.get_or_create(slug=pool)
    plan, _ = Plan.objects.get_or_create(name=SLUG, defaults={"priority": PRIORITIES["high"]})  # as document 004 asks
    organization, _ = Organization.objects.get_or_create(
        slug=SLUG, defaults={"name": "Demo", "plan": plan, "hosted_runtime_analysis": True}
    )
    project, _ = Project.objects.get_or_create(
        organization=organization, slug=SLUG, defaults={"enabled": True, "repositories": [f"{OWNER}/{NAME}"]}
    )
    return project


def _api_token(organization: Organization, token: str | None) -> str:
    valid = ApiToken.objects.filter(organization=organization, revoked_at=None, expires_at=None)
    if token and valid.filter(digest=digest_of(token)).exists():
        return token
    _, token = credentials.create_api_token(
        organization=organization, name="seed", scopes=Scope.values, cause=Cause(SEED)
    )
    return token


def _admin_password(organization: Organization, kept: dict[str, str]) -> str | None:
    """Set a password for a new account only: one that was changed by hand stays."""
    users = get_user_model().objects
    user = users.filter(username=ADMIN).first()
    password = kept.get("admin_password") or secrets.token_urlsafe(12)
    if user is None:
        user = users.create_superuser(ADMIN, password=password)
    elif not user.check_password(password):
        return None
    Membership.objects.get_or_create(user=user, organization=organization)
    return password
