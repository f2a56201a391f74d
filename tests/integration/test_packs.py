"""Pack runs on a real installation: by our worker in a real sandbox, and by the task runner of the documentation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from orchestrator.services import cancellation
from runtime_jobs.identifiers import public_id_of
from runtime_jobs.models import Job, StoredArtifact
from tests.factories import OPERATOR, WorkerFactory
from tests.integration.conftest import Yard
from tests.integration.test_steps import downloaded, log_of, post
from tests.packs import payload_of, register
from tests.workers.agent.worker_process import ROOT

pytestmark = pytest.mark.slow
PLAN: dict[str, Any] = {
    "inputs": {"imageRef": {"required": True}, "max-level": {"default": 7}},
    "environment": {"GREETING": "hello"},
    "steps": ['printf "%s %s %s" "$GREETING" "$INPUT_IMAGEREF" "$INPUT_MAX_LEVEL" > report.txt', "cat report.txt"],
    "artifacts": [{"path_glob": "report.txt"}],
}
RUNNER = re.compile(r"```python\n(# A task runner.*?)```", re.DOTALL)
FOUND_WITHIN = 22.0  # seconds; the lease lasts 20
TRIES = 3  # of which one must be in time: what else runs on the machine may delay the others
DELAY = 10.0  # seconds; the longest one


def submit(yard: Yard, **changes: Any) -> Job:
    payload = payload_of(register(yard.project.organization, PLAN), heartbeatCadence=10, **changes)
    shown = post(yard, "/api/jobs", {"jobType": "pack-run", "payload": payload, "timeoutSeconds": 60})
    return Job.objects.get(job_ulid=public_id_of("rtj", UUID(shown["jobId"])))


@pytest.mark.parametrize("engine", ["bubblewrap", "restricted"])
def test_our_worker_runs_a_pack_as_steps(yard: Yard, engine: str) -> None:
    job = submit(yard)
    worker = yard.start(yard.enrol("one"), "--once", engine=engine)
    assert worker.end(60) == 0, worker.log
    done = yard.ended(job)
    assert (done.public_status, done.exit_code) == ("succeeded", 0), (log_of(job), done.failure_message, worker.log)
    assert log_of(job) == [(1, b"hello nginx:latest 7")]
    assert [step["exit_code"] for step in done.result["steps"]] == [0, 0]
    assert [(file["path"], file["stored"]) for file in done.result["files"]] == [("report.txt", True)]
    assert downloaded(yard, job) == {"report.txt": b"hello nginx:latest 7"}


def test_the_runner_of_the_documentation_claims_beats_logs_uploads_and_completes(yard: Yard, tmp_path: Path) -> None:
    found = RUNNER.search((Path(ROOT) / "docs/protocols/stella.md").read_text())
    assert found is not None
    job, worker = submit(yard), WorkerFactory()
    script, variables = tmp_path / "runner.py", {"PATH": "/usr/bin:/bin", "TOKEN": worker.token}
    script.write_text(found[1])
    variables |= {"SERVER": yard.installation.url, "WORKER": worker.worker_id}
    ended = subprocess.run(
        [sys.executable, str(script)],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    done = yard.ended(job)
    assert (done.public_status, done.exit_code, done.result["outputs"]) == ("succeeded", 0, {"image": "nginx:latest"})
    assert log_of(job) == [(0, b"scanned nginx:latest\n")]
    assert downloaded(yard, job) == {"report.txt": b"scanned nginx:latest\n"}
    assert StoredArtifact.objects.get().received_bytes == len(b"scanned nginx:latest\n")


def seconds_until_silence_is_found(yard: Yard) -> float:
    job, worker = submit(yard), WorkerFactory()

    def call(path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {worker.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(yard.installation.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return dict(json.load(answer))

    lease = call("/v1/runtime/leases", {"worker_id": worker.worker_id, "job_types": ["pack-run"]})
    assert lease["job"]["job_id"] == job.job_ulid
    path, beat = f"/runs/{lease['job']['request']['run_id']}/heartbeat", {"leaseId": lease["lease_id"]}
    began = time.monotonic()
    call(path, beat)
    yard.ended(job, FOUND_WITHIN + DELAY)
    found = time.monotonic() - began
    assert found > 15
    with pytest.raises(urllib.error.HTTPError) as refused:
        call(path, beat)
    assert (refused.value.code, json.load(refused.value)["code"]) == (409, "stale_lease")
    (retry,) = yard.retries_of(job)  # the next try would get it
    cancellation.cancel(job_ulid=retry.job_ulid, actor=OPERATOR, deadline_seconds=10)
    return found


def test_a_silent_runner_is_found_within_two_heartbeats(yard: Yard) -> None:
    tries = (seconds_until_silence_is_found(yard) for _ in range(TRIES))
    assert any(found <= FOUND_WITHIN for found in tries)
