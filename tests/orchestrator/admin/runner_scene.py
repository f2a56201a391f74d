"""An hour of Bencher's runners: a processed job, a lost one, one in execution, one that waits, and what was billed."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from orchestrator.results import names
from orchestrator.results.models import Report
from orchestrator.results.outputs import encode_output
from orchestrator.results.processing import process, store_output
from orchestrator.services import claiming, expiry, heartbeat, job_end
from orchestrator.services.runner_channels import report_channels
from orchestrator.services.submission import submit
from runtime_jobs.models import Job
from runtime_jobs.specs import OCI, OciSpec, configured_policy
from tests.factories import (
    ALICE,
    HardwareSpecFactory,
    OrganizationFactory,
    ProjectFactory,
    RunnerFactory,
    offer,
    scheduler_beat,
    submission,
)
from workers.models import HardwareSpec, Worker

RESULT = """{"serde::parse": {"latency": {"value": 812.5, "lower_value": 790, "upper_value": 840}},
             "serde::render": {"latency": {"value": 1204.25}}, "tokenize": {"throughput": {"value": 5100000}}}"""
DIGEST = "sha256:" + "9f86d081884c7d65" * 4


@dataclass
class RunnerScene:
    runners: dict[str, Worker]
    specs: dict[str, HardwareSpec]
    jobs: dict[str, Job]
    reports: dict[str, Report]


def runner_afternoon() -> RunnerScene:
    """Make the rows. Outputs go to `STORAGES["outputs"]`."""
    now = timezone.now()
    scheduler_beat(now, "orchestrator-1:812")
    gigabyte = 1 << 30
    specs = {
        "intel-v1": HardwareSpecFactory(
            slug="intel-v1", name="Intel v1", cpu=8, memory=32 * gigabyte, disk=256 * gigabyte, fallback_at=now
        ),
        "intel-v1-vm": HardwareSpecFactory(
            slug="intel-v1-vm", name="Intel v1 in a microVM", sandbox="firecracker", cpu=2, memory=4 * gigabyte,
            disk=10 * gigabyte, network=True,
        ),
        "graviton": HardwareSpecFactory(
            slug="graviton", name="Graviton 4", architecture="aarch64", cpu=4, memory=16 * gigabyte, disk=64 * gigabyte
        ),
    }  # fmt: skip
    runners = {
        "rack-7": RunnerFactory(
            slug="rack-7", name="Rack 7, upper half", specs=[specs["intel-v1"], specs["intel-v1-vm"]]
        ),
        "rack-8": RunnerFactory(slug="rack-8", name="Rack 8", specs=[specs["intel-v1"]]),
        "rack-9": RunnerFactory(slug="rack-9", name="Rack 9"),
        "old-lab": RunnerFactory(slug="old-lab", name="Old lab", archived_at=now, state="archived"),
    }
    report_channels("web-1", {runners["rack-7"].pk: {"executing": 1, "polling": 1}}, {runners["rack-7"].pk: "0.6.12"})
    Worker.objects.filter(slug="rack-8").update(agent_version="0.6.9")
    for slug, seconds in (("rack-7", 1), ("rack-8", 41)):
        Worker.objects.filter(slug=slug).update(last_seen_at=now - timedelta(seconds=seconds))
    project = ProjectFactory(slug="adapter", organization=OrganizationFactory(slug="bencher"))
    scene = RunnerScene(runners, specs, {}, {})
    began = now - timedelta(minutes=50)
    first = _executed(scene, "processed", project, runners["rack-7"], specs["intel-v1"], began)
    done = job_end.complete(
        lease_ulid=first.lease_ulid,
        worker=runners["rack-7"],
        exit_code=0,
        result=store_output(first.job, encode_output([{"exit_code": 0, "stdout": RESULT}])),
        now=began + timedelta(seconds=433),
    )
    process(done)
    _executed(scene, "lost", project, runners["rack-8"], specs["intel-v1"], now - timedelta(minutes=9))
    expiry.expire(job_ulid=scene.jobs["lost"].job_ulid, now=now - timedelta(minutes=4))
    _executed(scene, "executing", project, runners["rack-7"], specs["intel-v1-vm"], now - timedelta(seconds=65))
    _executed(scene, "silent", project, runners["rack-8"], specs["intel-v1"], now - timedelta(seconds=41))
    _submitted(scene, "waiting", project, specs["graviton"], now - timedelta(minutes=3))
    for name, job in scene.jobs.items():
        scene.jobs[name] = Job.objects.get(pk=job.pk)
    return scene


def _submitted(scene: RunnerScene, name: str, project: Any, spec: HardwareSpec, at: datetime) -> Job:
    wanted = OciSpec(
        hardware_spec=str(spec.uuid), least_isolation=spec.least_isolation, registry="http://localhost:8000/",
        project=str(project.uuid), image_digest=DIGEST, timeout_seconds=900, image="localhost:8000/adapter:v1.4",
        cmd=("cargo", "bench", "--", "--output-format", "bencher"), env={"RUST_LOG": "info"}, iterations=3,
        file_paths=("/results/bench.json",),
    )  # fmt: skip
    job = submit(
        submission(project, wanted), policy=configured_policy(OCI), default_pool="shared-linux", actor=ALICE, now=at
    ).job
    scene.jobs[name] = job
    scene.reports[name] = Report.objects.create(
        project=project,
        job=job,
        branch=names.get_or_create_branch(project, "main"),
        testbed=names.get_or_create_testbed(project, spec.name),
        spec=spec,
        git_hash="805cfa0d24b8ca19f62355c584f0d6c19a804bff",
        adapter="json",
        start_time=at,
        end_time=at,
        created_at=at,
        created_by="mia",
    )
    return job


def _executed(scene: RunnerScene, name: str, project: Any, runner: Worker, spec: HardwareSpec, at: datetime) -> Any:
    """A job that the runner executes since then. Returns its lease."""
    _submitted(scene, name, project, spec, at - timedelta(seconds=2))
    offered = offer(runner, job_types=(OCI,), offers=frozenset({spec.label}), isolation=spec.least_isolation)
    claim = claiming.claim(worker=runner, offer=offered, now=at)
    assert claim is not None
    heartbeat.report(lease_ulid=claim.lease.lease_ulid, worker=runner, phase="executing", now=at)
    for seconds in {"processed": range(60, 430, 60), "executing": range(61, 65)}.get(name, ()):
        heartbeat.renew(lease_ulid=claim.lease.lease_ulid, worker=runner, now=at + timedelta(seconds=seconds))
    return claim.lease
