"""Data for the admin's tests and pictures: tenants, workers and jobs in all states, made by the operations."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.utils import timezone

from orchestrator.core.cause import Cause
from orchestrator.services import cancellation, expiry, heartbeat, job_end, worker_state
from orchestrator.services import submission as service_submission
from orchestrator.services.claiming import Claimed
from orchestrator.services.submission import Submission
from orchestrator.step_logs import job_log_writes
from runtime_jobs.models import Job, Organization, Project
from runtime_jobs.states import FailureReason
from tests.factories import (
    ALICE,
    OPERATOR,
    POLICY,
    OrganizationFactory,
    PlanFactory,
    PoolFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    scheduler_beat,
    spec,
)
from workers.models import Worker
from workers.registry.models import WorkerState

COMMITS = ("c13aa82903ea336cf3f21bdf2d930dc1a41f65cf", "7be0d1f4f5a2f2b1f05a0cbbfae0c1ac9aa4d1e2", "02ac" * 10)
LOG = """\
Lockfile is up to date, resolution step is skipped
Packages: +412
Progress: resolved 412, reused 398, downloaded 14, added 412, done
node_modules/core-js postinstall: running
node_modules/esbuild postinstall: running
node_modules/esbuild postinstall: done in 214 ms
node_modules/left-padder postinstall: reading ~/.aws/credentials
"""


@dataclass
class Scene:
    """Rows that a test may need. Times count back from `at`."""

    at: datetime = field(default_factory=timezone.now)
    workers: dict[str, Worker] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    claims: dict[str, Claimed] = field(default_factory=dict)

    def ago(self, minutes: float) -> datetime:
        return self.at - timedelta(minutes=minutes)

    def submit(self, name: str, project: Project, minutes: float, after: tuple[str, ...] = (), **asked: object) -> Job:
        """`after`: the names of the jobs that it depends on."""
        owner, repo = project.repositories[0].split("/")
        asked = {"owner": owner, "repo": repo, "repo_url": f"https://github.com/{owner}/{repo}.git"} | asked
        submission = Submission(
            org_slug=project.organization.slug,
            project_slug=project.slug,
            spec=spec(**asked),
            trigger_kind="pull_request",
            trigger_actor="github-app",
            correlation_id="4bf92f3577b34da6a3ce929d0e0e4736",
            source_address="198.51.100.7",
            depends_on=tuple(self.jobs[one].job_ulid for one in after),
        )
        outcome = service_submission.submit(
            submission, policy=POLICY, default_pool="shared-linux", actor=ALICE, now=self.ago(minutes)
        )
        self.jobs[name] = outcome.job
        return outcome.job

    def claim(self, name: str, worker: str, minutes: float, *, acknowledge: bool = False) -> Claimed:
        taker = self.workers[worker]
        found = claimed(taker, acknowledge=acknowledge, now=self.ago(minutes))
        assert found.job.job_ulid == self.jobs[name].job_ulid, "another job was first in the queue"
        self.claims[name] = found
        return found

    def execute(self, name: str, worker: str, minutes: float, log: str = LOG) -> str:
        """Claim and execute; returns the lease id."""
        lease, taker = self.claim(name, worker, minutes).lease.lease_ulid, self.workers[worker]
        heartbeat.report(lease_ulid=lease, worker=taker, phase="checking_out", now=self.ago(minutes - 0.02))
        heartbeat.report(lease_ulid=lease, worker=taker, phase="executing", now=self.ago(minutes - 0.1))
        if log:
            job_log_writes.append_log(
                lease_ulid=lease, worker=taker, seq=0, chunk=log.encode(), now=self.ago(minutes - 0.2)
            )
        return lease

    def keep(self, name: str, worker: str, minutes: float) -> None:
        """Heartbeats until now, so that the lease is alive."""
        lease, taker = self.claims[name].lease.lease_ulid, self.workers[worker]
        for quarter in range(int(minutes * 4), -1, -1):
            progress = {"percent": 62, "message": "installing"}
            heartbeat.renew(lease_ulid=lease, worker=taker, progress=progress, now=self.ago(max(quarter / 4, 0.1)))

    def upload(self, name: str, worker: str, minutes: float, lasted: float, run: str | None = None) -> None:
        lease, taker = self.execute(name, worker, minutes), self.workers[worker]
        end = minutes - lasted
        heartbeat.renew(lease_ulid=lease, worker=taker, now=self.ago(minutes - min(1.0, lasted)))
        heartbeat.report(lease_ulid=lease, worker=taker, phase="uploading", now=self.ago(end + 0.05))
        job_end.complete(
            lease_ulid=lease,
            worker=taker,
            ingest_run_id=run or f"run_{self.jobs[name].job_ulid[4:]}",
            exit_code=0,
            result={"counts": {"processes": 14, "files": 412, "network_attempts": 3, "suspicious": 2}},
            now=self.ago(end),
        )

    def fail(self, name: str, worker: str, minutes: float, reason: FailureReason, message: str, **rest: object) -> None:
        lease = self.execute(name, worker, minutes, **rest)
        job_end.fail(
            lease_ulid=lease,
            worker=self.workers[worker],
            reason=reason,
            message=message,
            exit_code=127 if reason == FailureReason.COMMAND_NOT_FOUND else None,
            now=self.ago(minutes - 0.7),
        )


def tenants() -> dict[str, Project]:
    free, team, firm = (
        PlanFactory(name=name, priority=priority) for name, priority in (("free", 100), ("team", 200), ("firm", 300))
    )
    northwind = OrganizationFactory(slug="northwind", name="Northwind Traders", plan=team)
    acme = OrganizationFactory(slug="acme-labs", name="Acme Labs", plan=free)
    sandtrace = OrganizationFactory(slug="sandtrace", name="Sandtrace", plan=firm, egress=["registry.example.org"])
    return {
        "web": _project(northwind, "web", "northwind/storefront"),
        "api": _project(northwind, "api", "northwind/orders-api"),
        "models": _project(acme, "models", "acme-labs/vision", pool="gpu-linux"),
        "cli": _project(sandtrace, "cli", "cc-consulting-nv/web"),
    }


def _project(organization: Organization, slug: str, repository: str, pool: str = "") -> Project:
    return ProjectFactory(organization=organization, slug=slug, repositories=[repository], pool=pool)


def machines(scene: Scene) -> None:
    linux, gpu = PoolFactory(slug="shared-linux"), PoolFactory(slug="gpu-linux")
    for slug, pool, seen in (
        ("build-01", linux, 0.05),
        ("build-02", linux, 0.1),
        ("build-03", linux, 0.2),
        ("attic-07", linux, 0.3),
        ("gpu-01", gpu, 14.0),
    ):
        worker = WorkerFactory(slug=slug, pool=pool, capacity=4, labels=["amd64"])
        Worker.objects.filter(pk=worker.pk).update(last_seen_at=scene.ago(seen))
        scene.workers[slug] = worker


def busy() -> Scene:
    """Jobs that ended, run and wait; one worker silent, one in maintenance, one pool without anybody."""
    scene = Scene()
    ours = tenants()
    machines(scene)
    _ended(scene, ours)
    _running(scene, ours)
    _waiting(scene, ours)
    worker_state.set_worker_state(
        worker_id=scene.workers["attic-07"].worker_id,
        state=WorkerState.MAINTENANCE,
        cause=Cause(OPERATOR, "smartctl complains"),
        note="New disk on Thursday",
    )
    worker_state.set_worker_state(
        worker_id=scene.workers["build-03"].worker_id,
        state=WorkerState.DRAINING,
        cause=Cause(OPERATOR, "kernel update"),
    )
    scheduler_beat(scene.at, "clock-a:4121")
    for job in scene.jobs.values():
        job.refresh_from_db()
    return scene


def _ended(scene: Scene, ours: dict[str, Project]) -> None:
    for number, project in enumerate(("web", "api", "cli", "web", "api"), start=1):
        minutes = 400 - 60 * number
        scene.submit(f"good-{number}", ours[project], minutes + 0.4, git_commit=COMMITS[number % 3])
        scene.upload(f"good-{number}", f"build-0{number % 2 + 1}", minutes, lasted=1.4)
    scene.submit("lost", ours["web"], 95, git_commit=COMMITS[1])
    scene.execute("lost", "build-02", 94.5)
    expiry.expire(job_ulid=scene.jobs["lost"].job_ulid, now=scene.ago(92))
    scene.jobs["lost-again"] = Job.objects.get(retry_of_job_ulid=scene.jobs["lost"].job_ulid)
    scene.upload("lost-again", "build-01", 91.5, lasted=1.9)
    scene.submit("typo", ours["api"], 62, command=("pnpn", "install"), git_commit=COMMITS[2])
    scene.fail(
        "typo", "build-01", 61.5, FailureReason.COMMAND_NOT_FOUND, "pnpn: no such program in the sandbox.", log=""
    )
    scene.submit("gone", ours["cli"], 48)
    scene.fail(
        "gone", "build-02", 47.5, FailureReason.CHECKOUT_FAILED, "fatal: reference is not a tree: c13aa82", log=""
    )
    scene.submit("oom", ours["web"], 33, git_commit=COMMITS[0])
    scene.fail("oom", "build-01", 32.5, FailureReason.OUT_OF_MEMORY, "The kernel killed node at 2.0 GiB.")
    for number in range(3):
        scene.submit(f"stranded-{number}", ours["models"], 27 - number)
    scene.submit("superseded", ours["web"], 21)
    cancellation.cancel(
        job_ulid=scene.jobs["superseded"].job_ulid,
        actor=OPERATOR,
        deadline_seconds=30,
        message="a newer push came",
        now=scene.ago(20.5),
    )
    scene.submit("never", ours["api"], 12)
    scene.claim("never", "build-02", 11.5, acknowledge=True)
    expiry.expire(job_ulid=scene.jobs["never"].job_ulid, now=scene.ago(10.9))
    scene.upload("never", "build-01", 10.8, lasted=1.1)


def _running(scene: Scene, ours: dict[str, Project]) -> None:
    for name, project, worker, minutes in (
        ("running", "web", "build-01", 3.9),
        ("stopping", "cli", "build-02", 2.5),
        ("fresh", "api", "build-03", 0.8),
    ):
        scene.submit(name, ours[project], minutes + 0.3, git_commit=COMMITS[0])
        scene.execute(name, worker, minutes)
        scene.keep(name, worker, minutes - 0.3)
    cancellation.cancel(
        job_ulid=scene.jobs["stopping"].job_ulid,
        actor=OPERATOR,
        deadline_seconds=30,
        message="wrong branch",
        now=scene.at,
    )
    scene.submit("taken", ours["web"], 0.4)
    scene.claim("taken", "build-02", 0.1, acknowledge=True)


def _waiting(scene: Scene, ours: dict[str, Project]) -> None:
    for number in range(4):
        scene.submit(f"waiting-{number}", ours["api" if number % 2 else "web"], 0.3 - number / 16)
    scene.submit("deploy", ours["web"], 0.04, after=("good-4", "running", "waiting-0"), command=("make", "deploy"))
    scene.submit("notify", ours["web"], 0.03, after=("deploy",), command=("make", "notify"))
