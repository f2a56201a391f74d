"""Rows of every kind, as the product itself writes them: by real workers and by the stand-ins of other projects' runners.

Nothing here writes a row of a job, a lease or an event: what a page meets is what the processes have stored.
"""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import requests
from django.contrib.auth.models import User
from django.core.management import call_command
from websockets.sync.client import ClientConnection, connect

from leases.models import Breaker
from orchestrator.core.cause import Cause
from orchestrator.incidents import breakers
from orchestrator.limits.throttles import ThrottleWindow
from orchestrator.services import cancellation, worker_state
from runtime_jobs.identifiers import public_id_of, uuid_of
from runtime_jobs.models import (
    CacheEntry,
    Job,
    MemberRole,
    Membership,
    Organization,
    Project,
    Repository,
    WorkflowRun,
)
from runtime_jobs.plans import plan_of_tier
from runtime_jobs.states import FailureReason
from tests.chaos.webhook_receiver import WebhookReceiver
from tests.factories import (
    OPERATOR,
    HardwareSpecFactory,
    PoolFactory,
    ProjectFactory,
    RunnerFactory,
    WorkerFactory,
    api_token,
    personal_key,
)
from tests.integration.conftest import Yard
from tests.integration.test_packs import RUNNER
from tests.integration.test_worker_faults import marked_sleep
from tests.integration.test_workflow_runs import FOLDER, WRONG, Http, deliver, is_processed
from tests.live_server import Server, eventually
from tests.orchestrator.protocols.bencher.conftest import make_server_admin
from tests.orchestrator.protocols.bencher.runs.world import BMF, direct_body, job_body
from tests.orchestrator.protocols.delta.runners.runner import Runner as DeltaRunner
from tests.orchestrator.protocols.github.conftest import new_secret, ready
from tests.orchestrator.protocols.shithub.runner import ClaimedJobClient, RunnerClient
from tests.orchestrator.protocols.shithub.world import register
from tests.orchestrator.repositories.world import Origin
from tests.workers.agent.worker_process import ROOT, processes_with
from tests.workflow_runs import workflow_text
from workers.models import Worker

SLOTS = 4
PATIENCE = 240.0  # seconds until something is seen, on a machine under load
CACHE = {"key": "lock-1", "paths": ["deps"], "read_only": False}
SECRET = "correct-horse-battery"  # printed by a job, and masked
FLOOD = "perl -e 'for (1 .. 400) { defined(my $pid = fork) or exit 1; $pid or do { sleep 60; exit } }'"
FULL = "fallocate -l 2500M one; fallocate -l 2500M two; sleep 60"
HUNGRY = "perl -e '$text = \"x\" x (3 << 30); sleep 60'"
PACK = {
    "inputs": {"imageRef": {"required": True}},
    "steps": ['printf "%s" "$INPUT_IMAGEREF" > report.txt'],
    "artifacts": [{"path_glob": "report.txt"}],
}
WORKFLOW = workflow_text(
    {
        "build": {
            "runs_on": "ci",
            "steps": "[{uses: actions/checkout@v4}, {run: make}]",
        },
        "test": {"runs_on": "ci", "needs": "build", "permissions": "{id-token: write, contents: read}"},
        "deploy": {"runs_on": "ci", "needs": "test"},
        "never": {"runs_on": "ci", "if": "shithub.ref == 'refs/heads/other'"},
    },
    name="CI",
)
STOPPED = workflow_text({"stop": {"runs_on": "stop"}}, concurrency="{group: stop, cancel-in-progress: true}")


class Tour:
    """One organization with one job of every kind, and the calls that made them."""

    def __init__(self, yard: Yard, server: Server, root: Path) -> None:
        self.yard, self.server, self.root = yard, server, root
        self.project = yard.project
        self.organization = yard.project.organization
        self.token = api_token(self.organization)
        self.admin = make_server_admin()
        self.admin_key = personal_key(self.admin)
        self.identity: dict[str, str] = {}

    def make_rows(self, receiver: WebhookReceiver, origin: Path) -> None:
        """Make all of them."""
        self.settings(receiver)
        self.worker_jobs()
        self.worker_faults()
        self.payload_jobs()
        self.delta_jobs()
        self.bencher_jobs()
        self.operations()
        self.workflow_jobs(Origin(origin))

    # --- calls --------------------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None, *, token: str | None = None, **rest: Any) -> Any:
        headers = {"Authorization": f"Bearer {token or self.token}"} | rest.pop("headers", {})
        answer = requests.request(method, self.server.url + path, json=body, headers=headers, timeout=60, **rest)
        assert answer.status_code < 300, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def post(self, path: str, body: Any = None, **rest: Any) -> Any:
        return self.call("POST", path, body, **rest)

    @property
    def source(self) -> dict[str, Any]:
        return {
            "kind": "github", "repo_url": "https://github.com/acme/web.git", "owner": "acme", "repo": "web",
            "git_commit": self.yard.commit,
        }  # fmt: skip

    def submit(self, job_type: str, trigger: str = "manual", **spec: Any) -> Job:
        body = {
            "org_slug": self.organization.slug, "project_slug": self.project.slug, "job_type": job_type, "spec": spec,
            "trigger": {"kind": trigger, "actor": "alice"},
        }  # fmt: skip
        return Job.objects.get(job_ulid=self.post("/v1/jobs", body)["job_id"])

    def steps(self, *lines: str, **spec: Any) -> Job:
        return self.submit("steps", **{"name": "unit", "steps": list(lines), "timeout_seconds": 60} | spec)

    def runtime(self, *command: str, source: Any = (), **execution: Any) -> Job:
        rest = {"working_directory": ".", "timeout_seconds": 60, "allow_network": False, "allow_exec": True}
        return self.submit(
            "runtime",
            source=self.source | dict(source),
            execution={"command": list(command)} | rest | execution,
        )

    def payload_job(self, job_type: str, payload: Any, **members: Any) -> Job:
        shown = self.post(
            "/api/jobs", {"jobType": job_type, "payload": payload, "project": self.project.slug} | members
        )
        return Job.objects.get(job_ulid=public_id_of("rtj", UUID(shown["jobId"])))

    def ended(self, job: Job, state: str, reason: str | None = None) -> Job:
        found = self.yard.ended(job)
        assert (found.state, found.failure_reason) == (state, reason), (self.yard.story(job), found.failure_message)
        return found

    # --- what tenants set ---------------------------------------------------------------------------------------------

    def settings(self, receiver: WebhookReceiver) -> None:
        """Webhooks of which one is refused, rules, secrets, a schema, a pack, schedules, limits and modes."""
        own = {"org_slug": self.organization.slug}
        works = self.post("/v1/webhooks", own | {"url": receiver.url})
        receiver.secret = works["secret"]
        dead = self.post("/v1/webhooks", own | {"url": "http://127.0.0.1:1/hook", "description": "nobody listens"})
        self.post(f"/v1/webhooks/{works['webhook_id']}/test")
        self.post(f"/v1/webhooks/{dead['webhook_id']}/test")
        rule = {"name": "failures", "event_types": ["job.failed"], "webhook_id": works["webhook_id"], "recipients": []}
        self.post("/v1/notification-rules", own | rule)
        self.call("PUT", "/v1/secrets/DEPLOY_KEY", own | {"value": SECRET})
        self.call("PUT", "/v1/variables/REGION", own | {"value": "eu-central-1"})
        document = {"type": "object", "required": ["imageRef"]}
        self.call("PUT", "/v1/payload-schemas/scan", own | {"document": document})
        self.pack = self.call("PUT", "/v1/packs/scanner/versions/1.0.0", own | {"plan": PACK})
        spec = {"payload": {"imageRef": "nginx"}, "timeout_seconds": 300}
        job = {"project_slug": self.project.slug, "job_type": "scan", "spec": spec}
        schedule = self.post("/v1/schedules", own | {"name": "each night", "cron": "30 3 * * *", "job": job})
        self.schedule_id = schedule["schedule_id"]
        limit = {"kind": "rate", "per_hour": 1000, "burst": 100, "reason": "a new tenant"}
        self.post("/v1/limits", own | limit)
        self.post("/v1/limits/pause", {"source": {"kind": "job_type", **own, "key": "policy-run"}, "reason": "upgrade"})
        tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        self.post("/v1/incident-modes", own | {"reason": "a leak is investigated", "until": tomorrow})

    # --- our worker ---------------------------------------------------------------------------------------------------

    def worker(self, token_file: Path, *arguments: str, **environment: str) -> Any:
        return self.yard.start(token_file, *arguments, engine="bubblewrap", **environment)

    def worker_jobs(self) -> None:
        """Jobs of each type that our worker runs, with every feature and every reason to fail that it can reach."""
        token = self.yard.enrol("one")
        Worker.objects.update(capacity=SLOTS)
        worker = self.worker(token, "--capacity", str(SLOTS))
        canceled = self.steps("sleep 60")
        self.yard.until(canceled, lambda found: found.state == "executing")
        self.post(f"/v1/jobs/{canceled.job_ulid}/cancel", {"reason": "a newer push"})
        environment = {"GREETING": "hello"}
        caches = [{"type": "deps", **CACHE}]
        line = (
            f"mkdir -p deps dist; echo x > deps/x; echo '<testsuite/>' > dist/unit.xml; echo {SECRET} > 'dist/a b.txt'"
        )
        full = [
            self.steps(
                line, "cat dist/*; echo $GREETING", environment=environment, caches=caches, source=self.source,
                artifacts=[{"type": "junit", "path_glob": "dist/*.xml"}, {"type": "file", "path_glob": "dist/*.txt"}],
                image=None, working_directory=".",
            )
            for _ in range(1)
        ]  # fmt: skip
        sealed = self.steps("mkdir dist; echo same > dist/a", artifacts=[{"type": "file", "path_glob": "dist/*"}])
        plan = {"packId": "scanner", "packVersion": "1.0.0", "planHash": self.pack["plan_hash"]}
        pack = self.payload_job("pack-run", plan | {"inputs": {"imageRef": "nginx"}, "heartbeatCadence": 10})
        traced = self.runtime("sh", "-c", "echo hello; cat /etc/hostname; exit 3")
        failing = {
            "command_failed": self.steps("echo one", "exit 7", "echo never"),
            "timed_out": self.steps("sleep 60", timeout_seconds=2),
            "too_many_processes": self.steps(FLOOD),
            "out_of_memory": self.steps(HUNGRY),
            "disk_full": self.steps(FULL),
            "checkout_failed": self.runtime("true", source={"git_commit": "b" * 40}),
            "command_not_found": self.runtime("nothing-of-this-name"),
        }
        for job in (*full, sealed, pack, traced):
            self.ended(job, "succeeded")
        assert CacheEntry.objects.filter(completed_at__isnull=False).exists()
        for reason, job in failing.items():
            self.ended(job, "failed", reason)
        self.ended(canceled, "canceled")

        # The second run restores the cache; retry, rerun and sealed replay of what has ended.
        again = self.steps("cat deps/x", caches=caches)
        shown = self.post(f"/v1/jobs/{failing['command_failed'].job_ulid}/retry", {"reason": "try again"})
        retried = Job.objects.get(job_ulid=shown["job_id"])
        rerun = self.post(
            f"/v1/jobs/{failing['timed_out'].job_ulid}/rerun", {"spec": {"steps": ["true"]}, "reason": "x"}
        )
        replay = self.post(f"/api/jobs/{uuid_of(sealed.job_ulid)}/replay", {"reason": "audit", "sealed": True})
        depending = self.steps("echo after")
        self.ended(again, "succeeded")
        self.ended(retried, "failed", "command_failed")
        self.ended(Job.objects.get(job_ulid=rerun["job_id"]), "succeeded")
        self.ended(Job.objects.get(job_ulid=public_id_of("rtj", UUID(replay["jobId"]))), "succeeded")
        self.ended(depending, "succeeded")
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0, worker.log

    def worker_faults(self) -> None:
        """A worker that dies at each place, and whose next life says so."""
        token = self.yard.enrol("two")
        unacknowledged = self.runtime("true")
        assert self.worker(token, ORCH_FP="worker.claimed=kill").end() == -signal.SIGKILL
        self.yard.lapse(unacknowledged)
        self.yard.until(unacknowledged, lambda found: found.state == "queued")
        assert self.worker(token, ORCH_FP="worker.upload.before=kill").end() == -signal.SIGKILL
        self.yard.lapse(unacknowledged)
        self.ended(unacknowledged, "failed", "lease_expired")
        mark = marked_sleep(60)
        (retry,) = self.yard.retries_of(unacknowledged)
        self.post(f"/v1/jobs/{retry.job_ulid}/cancel", {})
        shut_down = self.steps(f"sleep {mark}", source=self.source)
        worker = self.worker(token)
        eventually(lambda: processes_with(mark), PATIENCE)
        worker.signal(signal.SIGKILL)
        worker.end()
        self.worker(token, "--once")
        self.ended(shut_down, "failed", "worker_shutdown")

    # --- native clients of payloads -----------------------------------------------------------------------------------

    def payload_jobs(self) -> None:
        """The task runner of the documentation, and one that fails for every reason that a worker may name."""
        found = RUNNER.search((Path(ROOT) / "docs/protocols/stella.md").read_text())
        assert found is not None
        plan = {"packId": "scanner", "packVersion": "1.0.0", "planHash": self.pack["plan_hash"]}
        pack = self.payload_job("pack-run", plan | {"inputs": {"imageRef": "nginx"}, "heartbeatCadence": 10})
        worker = WorkerFactory(slug="tasks")
        variables = {"PATH": "/usr/bin:/bin", "TOKEN": worker.token, "WORKER": worker.worker_id}
        script = self.root / "runner.py"
        script.write_text(found[1])
        subprocess.run([sys.executable, script], env=variables | {"SERVER": self.server.url}, check=True, timeout=60)
        self.ended(pack, "succeeded")
        scan = {"imageRef": "nginx"}
        first = self.payload_job("scan", scan, cursors={"advisory": "a-1"}, correlationId="trace-1")
        self.payload_job("scan", scan, dependencies=[str(uuid_of(first.job_ulid))])
        assert self.serve_payload(worker, "scan", None)
        for place, reason in enumerate(FailureReason):
            job_type = ("scan", "advisory-sync")[place % 2]  # so that no breaker opens yet
            self.payload_job(job_type, scan)
            while not self.serve_payload(worker, job_type, reason):  # on a busy machine a breaker opens meanwhile
                breakers.reset_breaker(
                    org_slug=self.project.organization.slug, job_type=job_type, cause=Cause(OPERATOR, "for the tour")
                )
        for _ in range(20):
            self.payload_job("advisory-sync", scan)
            if not self.serve_payload(worker, "advisory-sync", FailureReason.WORKER_ERROR):
                break
        eventually(Breaker.objects.filter(state="half_open").exists, PATIENCE)
        self.ended(first, "succeeded")
        exported = {"format": "audit-bundle", "since": "2020-01-01T00:00:00Z"}
        self.ended(self.payload_job("export", exported), "succeeded")

    def serve_payload(self, worker: Worker, job_type: str, reason: str | None) -> bool:
        """Claim a job, and end it as a worker of payloads does. Returns whether there was one."""
        body = {"worker_id": worker.worker_id, "job_types": [job_type]}
        lease = self.post("/v1/runtime/leases", body, token=worker.token)
        if lease is None:
            return False
        own = f"/v1/runtime/leases/{lease['lease_id']}"
        progress = {"percent": 40, "current_step": "scan", "step_index": 0, "message": "half"}
        self.post(f"{own}/heartbeat", {"phase": "executing", "progress": progress}, token=worker.token)
        chunk = base64.b64encode(b"working\n").decode()
        self.post(f"{own}/logs", {"seq": 0, "chunk": chunk}, token=worker.token)
        if reason is None:
            result = {"status": "succeeded", "outputs": {"findings": 3}, "cursors": {"advisory": "a-2"}}
            self.post(f"{own}/complete", {"result": result}, token=worker.token)
            return True
        result = {"status": "failed", "reason": reason, "message": f"{reason}: as the worker says"}
        headers = {"Authorization": f"Bearer {worker.token}"}
        url = f"{self.server.url}{own}/fail"
        answer = requests.post(url, json={"result": result}, headers=headers, timeout=60)
        if answer.status_code == 400:  # a reason that only the server may give
            result["reason"] = FailureReason.WORKER_ERROR
            self.post(f"{own}/fail", {"result": result}, token=worker.token)
        return True

    # --- document 001 -------------------------------------------------------------------------------------------------

    def delta_jobs(self) -> None:
        """Its runner completes a job, fails one, is canceled, and leaves one."""
        WorkerFactory(slug="delta-runner", pool=PoolFactory(slug="delta", trusts_lease_ids=True))
        project = ProjectFactory(
            organization=self.organization, slug="delta", repositories=["acme/delta"], pool="delta"
        )
        for number, line in enumerate(("echo made", "exit 7", "sleep 60", "sleep 60")):
            jobs = [{"name": "unit-tests", "workdir": ".", "steps": [line], "env": {"CI": "true"}}]
            run = {"repo_id": "acme/delta", "ref": "refs/heads/main", "commit_sha": self.yard.commit, "jobs": jobs}
            self.post("/api/v1/runs", run)
            lease = self.root / f"lease-{number}.json"
            call_command("grantlease", format="delta", worker="delta-runner", output=lease, stdout=StringIO())
            runner = DeltaRunner(self.server.url, lease, "delta-runner", self.root)
            job = Job.objects.filter(project_slug=project.slug).latest("pk")

            def during(runner: DeltaRunner, number: int = number, job: Job = job) -> None:
                if number == 2:
                    self.post(f"/v1/jobs/{job.job_ulid}/cancel", {"reason": "wrong branch"})
                elif number == 3:
                    self.yard.lapse(job)
                    self.yard.ended(job)
                runner.beat()

            runner.run(during)
            self.yard.ended(job)
        self.post("/api/v1/runs", run)  # waits

    # --- document 002 -------------------------------------------------------------------------------------------------

    def bencher_jobs(self) -> None:
        """Its runner on the channel: a report, an unreadable one, a failure, a cancel, and a result after the lease."""
        organization = Organization.objects.create(slug="bencher", plan=plan_of_tier("team"))
        self.adapter = Project.objects.create(organization=organization, slug="adapter", visibility="public")
        self.bencher_token = api_token(organization)
        spec = HardwareSpecFactory(slug="two-cores", name="Two cores")
        runner = RunnerFactory(slug="rack-7", specs=[spec])
        mia = User.objects.create_user("mia")
        Membership.objects.create(user=mia, organization=organization, role=MemberRole.OPERATOR)
        self.mia_key = personal_key(mia)
        self.post("/v0/run", direct_body(BMF, project="adapter"), token=self.mia_key)
        for kind in ("completed", "unreadable", "failed", "canceled", "late"):
            body = job_body(spec="two-cores", timeout=300) | {"project": "adapter", "settings": {"adapter": "json"}}
            report = self.post("/v0/run", body, token=self.mia_key)
            job = Job.objects.get(job_ulid=public_id_of("rtj", UUID(report["job"])))
            result = {"exit_code": int(kind == "failed"), "stdout": "nothing" if kind == "unreadable" else BMF}
            last: dict[str, Any] = {"job": report["job"], "results": [result]}
            with channel_of(self.server.url, "rack-7", runner.token) as channel:
                assert channel.say("ready", poll_timeout=30)["event"] == "job"
                channel.say("running")
                channel.say("heartbeat")
                if kind == "canceled":
                    self.post(f"/v1/jobs/{job.job_ulid}/cancel", {}, token=self.bencher_token)
                    eventually(lambda channel=channel: channel.say("heartbeat")["event"] == "cancel", PATIENCE)
                    channel.say("canceled", job=report["job"])
                elif kind == "failed":
                    channel.say("failed", **last, error="The benchmark has failed.")
                elif kind != "late":
                    channel.say("completed", **last)
            if kind == "late":  # the runner connects again when its lease has ended
                self.yard.lapse(job)
                self.yard.until(job, lambda found: found.state == "lost")
                with channel_of(self.server.url, "rack-7", runner.token) as channel:
                    channel.say("completed", **last)
            if kind != "failed":  # it is `lost` for an hour, as a result may still arrive
                self.yard.ended(job)
        self.post("/v0/run", body, token=self.mia_key)  # waits

    # --- document 003 -------------------------------------------------------------------------------------------------

    def workflow_jobs(self, origin: Origin) -> None:
        """Its runner: logs, steps, artifacts, an ID token, a failure, a cancel; a rerun, and a file with an error."""
        project = ready(configured_command=[])
        self.workflow_token = token = api_token(project.organization)
        Repository.objects.create(project=project, owner="cc-consulting-nv", name="web", origin=str(origin.path))
        secret = new_secret(project)
        texts = {"ci.yml": WORKFLOW, "stop.yml": STOPPED, "wrong.yml": WRONG}
        self.head_sha = first = origin.commit({f"{FOLDER}/{name}": text.encode() for name, text in texts.items()})
        assert deliver(self.server, "wrong", first, "0" * 40, "d0") == 401
        assert deliver(self.server, secret, first, "0" * 40, "d1") == 202
        eventually(lambda: is_processed(first), PATIENCE)
        runner = RunnerClient(register("actions-1", capacity=8).client.registration, Http(self.server))  # type: ignore[arg-type]

        def begin(label: str) -> ClaimedJobClient:
            def claim() -> ClaimedJobClient | None:
                ThrottleWindow.objects.all().delete()  # the limit of 60 a minute has tests of its own
                found = runner.heartbeat(labels=[label], capacity=8)
                return ClaimedJobClient(runner, found.json()) if found.status_code == 200 else None

            job: ClaimedJobClient = eventually(claim, PATIENCE)
            assert job.run().status_code == 200
            return job

        build = begin("ci")
        build.log(b"::error file=main.c,line=3::broken\n::warning::old\nhello\n")
        content = b"coverage: 97 %\n"
        answer = build.call("artifacts/upload", {"name": "report", "size_bytes": len(content)})
        assert answer.status_code == 201, answer.text
        requests.put(answer.json()["upload_url"], data=content, timeout=60).raise_for_status()
        for conclusion in ("success", "failure"):
            job = build if conclusion == "success" else begin("ci")
            for place in range(len(job.steps)):
                job.end_step(place, conclusion)
            assert job.end(conclusion).status_code == 200
        stop = begin("stop")
        run = WorkflowRun.objects.select_related("batch").get(workflow_file=f"{FOLDER}/stop.yml")
        self.post(f"/v1/batches/{run.batch.batch_ulid}/cancel", {"reason": "wrong branch"}, token=token)
        stop.check_cancel()
        assert stop.end("cancelled", status="cancelled").status_code == 200
        failed = WorkflowRun.objects.select_related("batch").get(workflow_file=f"{FOLDER}/ci.yml")
        self.post(f"/v1/batches/{failed.batch.batch_ulid}/rerun", {"only": "failed", "reason": "again"}, token=token)
        self.post(f"/v1/batches/{failed.batch.batch_ulid}/pin", {"reason": "release"}, token=token)
        self.identity = begin("ci").job["env"]  # of a job that still runs

    # --- what waits, and what operators do ----------------------------------------------------------------------------

    def operations(self) -> None:
        """A schedule that ran, a bulk action, limits, an operator's cancel, and jobs that wait for each other."""
        own = {"org_slug": self.organization.slug}
        self.post(f"/v1/schedules/{self.schedule_id}/run", {"reason": "now"})
        waiting = [self.payload_job("policy-run", {"x": number}) for number in range(3)]
        self.payload_job("policy-run", {}, dependencies=[str(uuid_of(waiting[0].job_ulid))])
        cancellation.cancel(job_ulid=waiting[1].job_ulid, actor=OPERATOR, deadline_seconds=0, message="by hand")
        filters = {"job_type": "policy-run", "status": "queued"}
        bulk = self.post("/v1/bulk-actions", own | {"action": "cancel", "filter": filters, "reason": "reverted"})
        eventually(
            lambda: self.call("GET", f"/v1/bulk-actions/{bulk['bulk_action_id']}")["status"] == "completed", PATIENCE
        )
        self.payload_job("policy-run", {"x": 9})
        worker_state.set_worker_state(
            worker_id=Worker.objects.get(slug="two").worker_id, state="draining", cause=Cause(OPERATOR, "kernel")
        )


class Channel:
    """A connection of a Bencher runner: each message is answered by one."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    def say(self, event: str, **members: Any) -> dict[str, Any]:
        self._socket.send(json.dumps({"event": event, **members}))
        return dict(json.loads(self._socket.recv(timeout=60)))


@contextlib.contextmanager
def channel_of(url: str, slug: str, key: str) -> Iterator[Channel]:
    url = f"{url.replace('http', 'ws', 1)}/v0/runners/{slug}/channel"
    headers = {"Authorization": f"Bearer {key}"}
    with connect(url, additional_headers=headers, compression=None, proxy=None) as socket:
        yield Channel(socket)
