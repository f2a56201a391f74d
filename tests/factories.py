"""Creates rows for tests: tenants and workers directly, jobs and leases by the operations, so that they are legal."""

from collections.abc import Container
from dataclasses import replace
from datetime import datetime
from typing import Any

import factory

from leases.models import LaneHead, LaneQueue, Limit, LimitKind, QueueHead
from leases.scheduling.claims import Offer
from leases.scheduling.lanes import LaneUpdates, get_lane
from leases.scheduling.limits import ALL_TYPES, LimitTarget
from orchestrator.core.bulk_write import Changes, write_changes
from orchestrator.core.cause import Cause
from orchestrator.core.clock_beat import ClockBeat
from orchestrator.limits.job_limits import LimitTerms, set_limit
from orchestrator.processes import leadership
from orchestrator.services import claiming, personal_keys
from orchestrator.services.claiming import Claimed
from orchestrator.services.concurrency import ConcurrencyGroup
from orchestrator.services.submission import Submission, submit
from runtime_jobs.events import Actor
from runtime_jobs.models import ApiToken, Job, Organization, Plan, Project
from runtime_jobs.models.tenants import Scope
from runtime_jobs.specs import JOB_TYPES, RepositorySource, RuntimeSpec, StepsSpec
from workers.models import HardwareSpec, Pool, Worker, WorkerSpec
from workers.registry.models import PoolPolicy
from workers.registry.tokens import (
    API_PREFIX,
    PROJECT_PREFIX,
    RUNNER_PREFIX,
    WORKER_PREFIX,
    digest_of,
    new_key,
    new_token,
)

COMMIT = "c13aa82903ea336cf3f21bdf2d930dc1a41f65cf"
ALICE = Actor("client", "alice")
OPERATOR = Actor("operator", "olga")
TIMINGS = {
    "lease_ttl_seconds": 120, "heartbeat_interval_seconds": 20, "acknowledge_within_seconds": 30, "max_requeues": 5,
}  # fmt: skip
POLICY = JOB_TYPES["runtime"].policy(**TIMINGS)
# Of a job of type `steps` that settles: a late result counts for an hour, and is read before the job ends.
LATE_POLICY = replace(
    JOB_TYPES["steps"].policy(**TIMINGS | {"max_requeues": 0}, automatic_retries=0),
    late_result_seconds=3600,
    needs_processing=True,
)


class PlanFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Plan
        django_get_or_create = ("name",)

    name = "team"
    priority = 200
    max_timeout_seconds = 900


class OrganizationFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Organization
        django_get_or_create = ("slug",)

    slug = factory.Sequence(lambda n: f"org-{n}")
    plan = factory.SubFactory(PlanFactory)
    hosted_runtime_analysis = True


class ProjectFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Project
        django_get_or_create = ("organization", "slug")

    organization = factory.SubFactory(OrganizationFactory)
    slug = "web"
    enabled = True
    repositories = ["cc-consulting-nv/web"]


class PoolFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Pool
        django_get_or_create = ("slug",)

    slug = "shared-linux"


class WorkerFactory(factory.django.DjangoModelFactory):
    """`worker.token` is the plain token, which no row has."""

    class Meta:
        model = Worker

    slug = factory.Sequence(lambda n: f"worker-{n}")
    pool = factory.SubFactory(PoolFactory)
    capacity = 50

    @classmethod
    def _create(cls, model_class: type[Worker], *args: Any, **kwargs: Any) -> Worker:
        token = kwargs.pop("token", None) or new_token(WORKER_PREFIX)
        worker = super()._create(model_class, *args, digest=digest_of(token), **kwargs)
        worker.token = token
        return worker


class RunnerPoolFactory(PoolFactory):
    """As the migration creates it, which the cleanup after a test that commits deletes."""

    slug = "bare-metal"
    least_isolation = "none"
    policy = PoolPolicy.FIFO
    aging = False


class RunnerFactory(WorkerFactory):
    """A runner of the Bencher protocol; `runner.token` is its key. `specs`: what it is associated with."""

    slug = factory.Sequence(lambda n: f"runner-{n}")
    name = factory.LazyAttribute(lambda runner: runner.slug.replace("-", " ").title())
    pool = factory.SubFactory(RunnerPoolFactory)
    capacity = 256
    capabilities = []

    @classmethod
    def _create(cls, model_class: type[Worker], *args: Any, specs: Any = (), **kwargs: Any) -> Worker:
        kwargs.setdefault("token", new_key(RUNNER_PREFIX))
        runner = super()._create(model_class, *args, **kwargs)
        for spec in specs:
            WorkerSpec.objects.create(worker=runner, spec=spec)
        return runner


class HardwareSpecFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = HardwareSpec

    slug = factory.Sequence(lambda n: f"spec-{n}")
    name = factory.LazyAttribute(lambda spec: spec.slug.replace("-", " ").title())
    os = "linux"
    architecture = "x86_64"
    cpu = 2
    memory = 4 << 30
    disk = 10 << 30


def api_token(organization: Organization, scopes: tuple[str, ...] = tuple(Scope.values)) -> str:
    """A new token of the organization, in plain."""
    token = new_token(API_PREFIX)
    ApiToken.objects.create(organization=organization, name="test", digest=digest_of(token), scopes=list(scopes))
    return token


def personal_key(user: Any, **options: Any) -> str:
    """A new key of this person for the Bencher API, in plain; `is_jwt=True` for a JSON Web Token."""
    return personal_keys.create_personal_key(user=user, name="test", creator=None, cause=Cause(OPERATOR), **options)[1]


def project_key(project: Project, **columns: Any) -> str:
    """A new key of this project for the Bencher API, in plain."""
    key = new_key(PROJECT_PREFIX)
    ApiToken.objects.create(
        organization=project.organization, project=project, name="test", digest=digest_of(key), **columns
    )
    return key


def spec(**changes: Any) -> RuntimeSpec:
    values = {
        "repo_url": "https://github.com/cc-consulting-nv/web.git",
        "owner": "cc-consulting-nv",
        "repo": "web",
        "ref": "refs/heads/main",
        "git_commit": COMMIT,
        "pull_request_number": 98,
        "working_directory": ".",
        "command": ("pnpm", "install"),
        "timeout_seconds": 300,
        "allow_network": True,
        "allow_exec": True,
    }
    return RuntimeSpec(**values | changes)


def submitted(
    project: Project | None = None,
    *,
    policy: Any = POLICY,
    now: datetime | None = None,
    depends_on: tuple[Job, ...] = (),
    group: ConcurrencyGroup | None = None,
    priority: int | None = None,
    **changes: Any,
) -> Job:
    """A queued job, or a blocked one."""
    on = tuple(job.job_ulid for job in depends_on)
    given = submission(project or ProjectFactory(), spec(**changes), depends_on=on, group=group, priority=priority)
    return submit(given, policy=policy, default_pool="shared-linux", actor=ALICE, now=now).job


def submission(project: Project, wanted: Any, **changes: Any) -> Submission:
    values = {
        "org_slug": project.organization.slug,
        "project_slug": project.slug,
        "spec": wanted,
        "trigger_kind": "manual",
        "trigger_actor": "alice",
        "correlation_id": "test",
        "source_address": "127.0.0.1",
    }
    return Submission(**values | changes)


def source(**changes: Any) -> RepositorySource:
    return spec(**changes).source


def steps_spec(**changes: Any) -> StepsSpec:
    return StepsSpec(**{"name": "unit", "steps": ("make test",), "timeout_seconds": 300} | changes)


def submitted_steps(
    project: Project | None = None,
    *,
    policy: Any = None,
    pool: str | None = None,
    now: datetime | None = None,
    **changes: Any,
) -> Job:
    """A queued job of type `steps`."""
    given = submission(project or ProjectFactory(), steps_spec(**changes), pool=pool)
    policy = policy or JOB_TYPES["steps"].policy(**TIMINGS)
    return submit(given, policy=policy, default_pool="shared-linux", actor=ALICE, now=now).job


def demanding(job: Job, **columns: Any) -> None:
    """Give a waiting job other scheduling columns than its type or project does, and the lane for them."""
    for name, value in columns.items():
        setattr(job, name, value)
    job.lane_id = get_lane(job)
    job.save(update_fields=[*columns, "lane_id"])
    LaneHead.objects.update(head_id=None, head_at=None)
    waiting = Job.objects.queued().values_list("pk", "lane_id", "created_at")
    write_changes(Changes(), lanes=LaneUpdates(entered=list(waiting)))


def queue_head(**key: Any) -> QueueHead:
    """Return the head of the only queue with these columns."""
    return QueueHead.objects.get(queue_id=LaneQueue.objects.get(**key).pk)


def offer(worker: Worker, **changes: Any) -> Offer:
    values = {
        "worker_id": worker.worker_id,
        "pool": worker.pool.slug,
        "job_types": ("runtime",),
        "offers": frozenset(worker.capabilities) | frozenset(worker.labels),
        "isolation": "namespaces",
    }
    return Offer(**values | changes)


def claimed(
    worker: Worker | None = None,
    *,
    acknowledge: bool = False,
    job_types: tuple[str, ...] = ("runtime",),
    **kwargs: Any,
) -> Claimed:
    """The next job, on a lease of this worker. `acknowledge=True` leaves it granted."""
    worker = worker or WorkerFactory()
    offered = offer(worker, job_types=job_types)
    found = claiming.claim(worker=worker, offer=offered, acknowledge=acknowledge, **kwargs)
    assert found is not None
    return found


def limited(
    target: LimitTarget | str,
    job_type: str = ALL_TYPES,
    *,
    kind: LimitKind = LimitKind.ORGANIZATION,
    cause: Cause | None = None,
    if_versions: Container[int] | None = None,
    **terms: Any,
) -> Limit | None:
    """Limit the jobs of a target, or of an organization, as an operator. Without terms the limit is removed."""
    if isinstance(target, str):
        target = LimitTarget.of_organization(target, job_type)
    return set_limit(kind, target, LimitTerms(**terms), cause=cause or Cause(OPERATOR, "test"), if_versions=if_versions)


SUBMIT_BODY = {
    "org_slug": "sandtrace",
    "project_slug": "web",
    "source": {
        "kind": "github",
        "repo_url": "https://github.com/cc-consulting-nv/web.git",
        "owner": "cc-consulting-nv",
        "repo": "web",
        "ref": "refs/heads/main",
        "git_commit": COMMIT,
        "pull_request_number": 98,
    },
    "execution": {
        "working_directory": ".",
        "command": ["pnpm", "install"],
        "timeout_seconds": 300,
        "allow_network": True,
        "allow_exec": True,
    },
    "trigger": {"kind": "pull_request", "actor": "github-app"},
}
SUBMIT_ANY_BODY = {
    "org_slug": "sandtrace",
    "project_slug": "web",
    "job_type": "steps",
    "spec": {
        "name": "unit",
        "steps": ["make build", "make test"],
        "timeout_seconds": 300,
        "source": SUBMIT_BODY["source"],
    },
    "trigger": {"kind": "manual", "actor": "alice"},
}


def scheduler_beat(at: datetime, leader: str = "test") -> None:
    """Write the beat of a scheduler, in its row. A process that an earlier test has killed may have left that row."""
    ClockBeat.objects.update_or_create(pk=leadership.ROW, defaults={"leader": leader, "beat_at": at})
