"""Jobs of steps, from the submission at `/v1/jobs` to their end, by real workers in a real sandbox."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from runtime_jobs.models import Job, JobEvent, LogChunk
from runtime_jobs.specs import JOB_TYPES
from tests.factories import TIMINGS, api_token, submitted_steps
from tests.integration.conftest import Yard
from tests.integration.test_worker_faults import marked_sleep
from tests.workers.agent.scripted import wait_until
from tests.workers.agent.worker_process import ROOT, processes_with

pytestmark = pytest.mark.slow


def post(yard: Yard, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {api_token(yard.project.organization)}", "Content-Type": "application/json"}
    request = urllib.request.Request(yard.installation.url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def submit(yard: Yard, *steps: str, **spec: Any) -> Job:
    body = {
        "org_slug": yard.project.organization.slug,
        "project_slug": yard.project.slug,
        "job_type": "steps",
        "spec": {"name": "unit", "steps": list(steps), "timeout_seconds": 60} | spec,
        "trigger": {"kind": "manual"},
    }
    return Job.objects.get(job_ulid=post(yard, "/v1/jobs", body)["job_id"])


def downloaded(yard: Yard, job: Job) -> dict[str, bytes]:
    """The content of each artifact of a job, as a client downloads it."""
    headers = {"Authorization": f"Bearer {api_token(yard.project.organization)}"}

    def get(url: str) -> bytes:
        own = headers if "/v1/objects/" not in url else {}
        with urllib.request.urlopen(urllib.request.Request(url, headers=own), timeout=60) as answer:
            return bytes(answer.read())

    base = f"{yard.installation.url}/v1/artifacts"
    listed = json.loads(get(f"{base}?job_id={job.job_ulid}"))["results"]
    shown = [json.loads(get(f"{base}/{row['artifact_id']}")) for row in listed]
    return {row["name"]: get(row["download_url"]) for row in shown}


def log_of(job: Job) -> list[tuple[int, bytes]]:
    rows = LogChunk.objects.filter(job_id=job.job_ulid).order_by("step", "seq").values_list("step", "chunk")
    joined: dict[int, bytes] = {}
    for step, chunk in rows:
        joined[step] = joined.get(step, b"") + bytes(chunk)
    return sorted(joined.items())


@pytest.mark.parametrize("engine", ["bubblewrap", "restricted"])
def test_steps_share_workspace_home_and_tmp_and_nothing_that_runs(yard: Yard, engine: str) -> None:
    mark = marked_sleep(30)
    job = submit(
        yard,
        f"echo one > made; echo two > ~/kept; echo three > /tmp/kept 2>/dev/null || echo three > $TMPDIR/kept; "
        f"(setsid sleep {mark} >/dev/null 2>&1 &); export GONE=1; cd /",
        'cat made ~/kept; cat /tmp/kept 2>/dev/null || cat "$TMPDIR/kept"; echo "$GREETING$GONE"; ls; mkdir -p reports; '
        "echo '<x/>' > reports/unit.xml",
        source={
            "kind": "github", "repo_url": "https://github.com/acme/web.git", "owner": "acme", "repo": "web",
            "git_commit": yard.commit,
        },
        environment={"GREETING": "hello"},
        artifacts=[{"type": "junit", "path": "reports"}],
        working_directory=".",
    )  # fmt: skip
    Job.objects.filter(pk=job.pk).update(least_isolation="restricted")
    worker = yard.start(yard.enrol("one"), "--once", engine=engine)
    assert worker.end() == 0, worker.log
    done = yard.ended(job)
    assert (done.public_status, done.exit_code) == ("succeeded", 0), (log_of(job), done.failure_message, worker.log)
    assert dict(log_of(job))[1] == b"one\ntwo\nthree\nhello\nmade\nname\n"
    assert [(step["index"], step["exit_code"]) for step in done.result["steps"]] == [(0, 0), (1, 0)]
    assert [(file["type"], file["path"], file["size_bytes"]) for file in done.result["files"]] == [
        ("junit", "reports/unit.xml", 5)
    ]
    assert [file["stored"] for file in done.result["files"]] == [True]
    assert downloaded(yard, job) == {"reports/unit.xml": b"<x/>\n"}
    assert processes_with(mark) == []
    phases = JobEvent.objects.filter(job_id=job.job_ulid).order_by("seq").values_list("to_state", flat=True)
    assert [phase for phase in phases if phase] == [
        "queued", "leased", "starting", "checking_out", "executing", "uploading", "succeeded",
    ]  # fmt: skip


def test_a_failed_step_a_cancel_and_the_time_of_all_steps_end_a_job(yard: Yard) -> None:
    """Three jobs of one worker."""
    slow_mark, canceled_mark = marked_sleep(60), marked_sleep(60)
    # Long enough for the first step on a machine that is loaded by others.
    slow = submit(yard, "true", f"sleep {slow_mark}", timeout_seconds=12)
    failing = submit(yard, "echo one", "exit 7", "echo never")
    worker = yard.start(yard.enrol("one"), "--capacity", "2", engine="bubblewrap")

    failed = yard.ended(failing)
    assert (failed.public_status, failed.failure_reason, failed.exit_code) == ("failed", "command_failed", 7), (
        worker.log
    )
    assert log_of(failing) == [(0, b"one\n")]
    assert yard.retries_of(failing) == []

    policy = JOB_TYPES["steps"].policy(
        **TIMINGS | {"lease_ttl_seconds": 30, "heartbeat_interval_seconds": 1}
    )  # so that it learns of the cancel soon
    running = submitted_steps(yard.project, policy=policy, steps=(f"sleep {canceled_mark}", "echo never"))
    yard.until(running, lambda found: found.state == "executing")
    wait_until(lambda: processes_with(canceled_mark))
    post(yard, f"/v1/jobs/{running.job_ulid}/cancel", {})
    assert yard.ended(running).state == "canceled"
    wait_until(lambda: not processes_with(canceled_mark), 5)
    assert log_of(running) == []

    late = yard.ended(slow)
    assert (late.failure_reason, len(late.result["steps"])) == ("timed_out", 2)
    assert late.finished_at - late.executing_at < timedelta(seconds=60)
    assert processes_with(slow_mark) == []
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0, worker.log


@pytest.mark.root
def test_the_time_limit_is_reported_although_another_worker_of_the_machine_runs_jobs(yard: Yard) -> None:
    """The other one has a network of its own, so that it cannot see which uids are reserved.

    At commit 8637103 it took the uid of the running step, and its own job's end killed the step: `command_failed`. A
    step that had just begun failed without a result.
    """
    mark = marked_sleep(60)
    # Long enough for the other worker's attempt on a machine that is loaded by others.
    job = submit(yard, "true", f"sleep {mark}", timeout_seconds=12)
    place = yard.root / "place"
    place.mkdir()
    worker = yard.start(yard.enrol("one"), "--once", engine="bubblewrap")
    wait_until(lambda: processes_with(mark))
    (uid,) = {Path(f"/proc/{pid}").stat().st_uid for pid in processes_with(mark)} - {0}
    os.chown(place, uid, uid)
    lone_worker = ["-m", "tests.workers.engines.lone_worker", "bubblewrap", str(uid), str(place), "full", "true"]
    other = subprocess.run(
        ["unshare", "--net", sys.executable, *lone_worker], cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )  # fmt: skip
    assert worker.end() == 0, worker.log
    late = yard.ended(job)
    assert (late.failure_reason, len(late.result["steps"])) == ("timed_out", 2), other.stdout


def test_a_worker_killed_before_its_word_was_taken_tells_it_in_its_next_life(yard: Yard) -> None:
    job = submit(yard, "null print=hello", "null exit=3")
    token = yard.enrol("one")
    first = yard.start(token, "--once", ORCH_FP="worker.complete.send=kill")
    assert first.end() == -signal.SIGKILL, first.log
    assert len(list((yard.root / "one" / "spool").glob("*.result"))) == 1
    assert Job.objects.get(pk=job.pk).state == "executing"
    second = yard.start(token)
    done = yard.ended(job)
    assert (done.failure_reason, done.exit_code, len(done.result["steps"])) == ("command_failed", 3, 2)
    second.signal(signal.SIGTERM)
    second.end()
    assert list((yard.root / "one" / "spool").iterdir()) == []
    assert done.fence == 1, "nothing ran again"


def test_a_killed_worker_costs_one_attempt_of_the_steps(yard: Yard) -> None:
    policy = JOB_TYPES["steps"].policy(**TIMINGS | {"lease_ttl_seconds": 60, "heartbeat_interval_seconds": 1})
    job = submitted_steps(yard.project, policy=policy, steps=("null print=on", "null sleep=60"))
    first = yard.start(yard.enrol("one"))
    yard.until(job, lambda found: (found.progress or {}).get("step_index") == 1)
    first.kill()
    yard.lapse(job)
    assert yard.ended(job).failure_reason == "lease_expired"
    (retry,) = yard.retries_of(job)
    assert retry.spec == job.spec


def test_an_image_waits_for_who_has_an_engine_for_it(yard: Yard) -> None:
    job = submit(yard, "null", image="tool:1")
    other = submit(yard, "null")
    worker = yard.start(yard.enrol("one"), "--once")
    assert worker.end() == 0, worker.log
    assert yard.ended(other).state == "succeeded"
    assert Job.objects.get(pk=job.pk).state == "queued"
