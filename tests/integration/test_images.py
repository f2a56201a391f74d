"""Jobs of type `oci`, from the push of the image to the metrics of the report, by real workers in a real sandbox."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import requests
from django.contrib.auth import get_user_model

from orchestrator.results.models import Metric
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job, LogChunk, MemberRole, Membership, Project
from runtime_jobs.states import JobState
from tests.factories import HardwareSpecFactory, ProjectFactory, RunnerFactory, personal_key
from tests.integration.conftest import Yard
from tests.workers.agent.scripted import wait_until
from tests.workers.agent.worker_process import processes_with
from tests.workers.images import Image, base, entry, folder, layer, push
from workers.models import WorkerSpec

pytestmark = [pytest.mark.slow, pytest.mark.root]

BENCH = b"""#!/bin/sh
echo noise >&2
echo changed >> /home/app/own
echo "{\\"size\\": {\\"latency\\": {\\"value\\": $1}}}" > /out.json
cat /home/app/own
exit ${2:-0}
"""
CONFIG = {"Entrypoint": ["/bench"], "Cmd": ["5"], "User": "app", "WorkingDir": "/w"}
IMAGE = Image((base(), layer(entry("bench", BENCH), entry("dev/x", kind=b"3"), compression="zstd")), CONFIG)


class Images:
    """Pushes images and runs them, as a person does."""

    def __init__(self, yard: Yard) -> None:
        self.yard, self.url = yard, yard.installation.url
        self.project = Project.objects.get(pk=yard.project.pk)
        user = get_user_model().objects.create_user("mia")
        Membership.objects.create(user=user, organization=self.project.organization, role=MemberRole.OPERATOR)
        self.name, self.key = user.username, personal_key(user)
        self.spec = HardwareSpecFactory(cpu=1, memory=256 << 20, disk=64 << 20, network=False)
        self.runner = RunnerFactory()
        WorkerSpec.objects.create(worker=self.runner, spec=self.spec)
        self.token_file = yard.root / "images.token"
        self.token_file.write_text(f"{self.runner.token}\n{self.runner.worker_id}\n")
        self.token_file.chmod(0o600)

    def push(self, image: Image, tag: str) -> str:
        return push(self.url, self.project.public_slug, image, tag=tag, credentials=(self.name, self.key))

    def run(self, tag: str, **config: Any) -> Job:
        job = {"image": f"{self.project.public_slug}{tag}", "spec": str(self.spec.uuid)} | config
        times = {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:00Z"}
        body = {"project": self.project.public_slug, "branch": "main", "testbed": "t", **times, "results": []}
        headers = {"Authorization": f"Bearer {self.key}"}
        answer = requests.post(f"{self.url}/v0/run", json=body | {"job": job}, headers=headers, timeout=30)
        assert answer.status_code == 201, answer.text
        return Job.objects.latest("created_at")

    def output(self, job: Job) -> dict[str, Any]:
        address = f"{self.url}/v0/projects/{self.project.public_slug}/jobs/{uuid_of(job.job_ulid)}"
        answer = requests.get(address, headers={"Authorization": f"Bearer {self.key}"}, timeout=30).json()
        return {"status": answer["status"], **(answer.get("output") or {})}

    def worker(self, *arguments: str) -> Any:
        return self.yard.start(self.token_file, "--pool", self.runner.pool.slug, *arguments, engine="oci")


@pytest.fixture
def images(yard: Yard) -> Images:
    return Images(yard)


def log_of(job: Job) -> str:
    rows = LogChunk.objects.filter(job_id=job.job_ulid).order_by("seq").values_list("chunk", flat=True)
    return b"".join(map(bytes, rows)).decode()


def left_of(place: Path) -> list[str]:
    return [path.name for path in (place / "jobs").iterdir()]


def test_a_pushed_image_runs_to_its_metrics(images: Images) -> None:
    digest = images.push(IMAGE, "good")
    images.push(Image((layer(folder("../out")),), CONFIG), "hostile")
    worker = images.worker()
    Project.objects.filter(pk=images.project.pk).update(trace="full")
    good = images.run(":good", iter=2, cmd=["7"], file_paths=["/out.json", "../../etc/hostname"], timeout=60)
    wrong = images.run(":good", cmd=["7", "3"])
    hostile = images.run(":hostile")
    missing = images.run(f"@sha256:{'0' * 64}")
    # Another project may not run what this one has pushed, although the worker has it.
    images.project = ProjectFactory(organization=images.project.organization, slug="other", trace="full")
    foreign = images.run(f"@{digest}")
    images.project = Project.objects.get(pk=images.yard.project.pk)
    ended = [images.yard.ended(job) for job in (good, wrong, hostile, missing, foreign)]
    assert [job.state for job in ended] == [JobState.SUCCEEDED, *[JobState.FAILED] * 4], worker.log
    reasons = [job.failure_reason for job in ended[1:]]
    assert reasons == ["command_failed", "image_invalid", "image_pull_failed", "image_pull_failed"]
    assert ended[2].failure_message.startswith("The image has an entry outside of its root: '../out'.")
    assert "404: MANIFEST_UNKNOWN" in ended[3].failure_message
    text = '{"size": {"latency": {"value": 7}}}\n'
    iteration = {"exit_code": 0, "stdout": "mine\nchanged\n", "stderr": "noise\n", "output": {"/out.json": text}}
    assert images.output(good) == {"status": "processed", "results": [iteration] * 2}
    assert list(Metric.objects.values_list("value", flat=True)) == [7.0, 7.0]
    traces = [step["trace"] for step in ended[0].result["steps"]]
    assert [(trace["level"], trace["counts"]["bad_lines"]) for trace in traces] == [("full", 0)] * 2
    assert images.output(wrong)["results"][0]["exit_code"] == 3
    assert "[image: 1 special file left out: 'dev/x' (device)]" in log_of(good)
    assert log_of(good).count("changed") == 2
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0, worker.log
    assert left_of(images.yard.root / "images") == []


def test_a_cancel_and_a_kill_leave_nothing(images: Images) -> None:
    sleeper = Image((base(),), {"Entrypoint": ["/bin/sleep"]})
    images.push(sleeper, "sleep")
    worker = images.worker()
    marks = [f"{300 + number}.{os.getpid()}" for number in range(2)]
    job = images.run(":sleep", cmd=[marks[0]])
    wait_until(lambda: processes_with(marks[0]))
    address = f"{images.url}/v0/projects/{images.project.public_slug}/jobs/{uuid_of(job.job_ulid)}"
    answer = requests.patch(
        address, json={"status": "canceled"}, headers={"Authorization": f"Bearer {images.key}"}, timeout=30
    )
    assert answer.status_code == 200, answer.text
    assert images.yard.ended(job).state == JobState.CANCELED
    assert processes_with(marks[0]) == []
    images.run(":sleep", cmd=[marks[1]])
    wait_until(lambda: processes_with(marks[1]))
    mounts = Path(f"/proc/{worker.process.pid}/mountinfo").read_text()
    assert " overlay image " in mounts
    loops = {line.split()[-2] for line in mounts.splitlines() if str(images.yard.root) in line and "/dev/loop" in line}
    assert len(loops) == 2  # of the slot and of the image
    worker.kill()
    wait_until(lambda: not processes_with(marks[1]))
    wait_until(lambda: not any(_is_used(loop, images.yard.root) for loop in loops))
    assert not any(path.is_file() for path in (images.yard.root / "images" / "jobs").rglob("*"))


def _is_used(loop: str, root: Path) -> bool:
    file = Path("/sys/block", Path(loop).name, "loop/backing_file")
    try:
        return str(root) in file.read_text()
    except OSError:
        return False
