"""The stories: what a runner goes through, and what must come of it. Each raises AssertionError if it is not so."""

import base64
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import jwt
import requests

from leases.models import Lease
from orchestrator.core.cause import Cause
from orchestrator.job_tokens.models import UsedToken
from orchestrator.services import actions_runners, cancellation, expiry, worker_state
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job, WorkflowRun
from runtime_jobs.states import FailureReason, JobState
from tests.factories import ALICE, OPERATOR
from tests.live_server import eventually
from tests.orchestrator.protocols.shithub.stories.scene import LABEL, Scene

SECRET: Final = "hunter2-correct-horse"
WAIT: Final = "until [ -e go ]; do sleep 0.05; done"
DONE: Final = ("completed", "success")
FAILED: Final = ("completed", "failure")
SKIPPED: Final = ("skipped", "skipped")
CHECKOUT: Final = "uses: actions/checkout@v4"


def checkout_and_two_steps(scene: Scene) -> None:
    """A private repository is checked out, and two steps use it."""
    run = scene.submit(CHECKOUT, "run: cat README", f"run: bash test.sh >&2; {WAIT}", env="{GREETING: hello}")
    scene.start_runner()
    scene.wait_for_output(run, "a script of the repository")
    scene.release_after_poll(run)
    scene.wait_for_run(run, "success")
    assert scene.steps(run) == [DONE, DONE, DONE]
    checkout, *others = scene.logs(run)
    assert checkout.startswith("Checking out http://127.0.0.1:")
    assert checkout.endswith(f"{scene.commit}\nChecked out {scene.commit[:12]}\n")
    assert others == ["of the repository\n", "a script of the repository\n"]


def failing_step(scene: Scene) -> None:
    """A failing step ends the job; a later one is not executed."""
    run = scene.submit("run: echo before; exit 3", "run: echo never")
    scene.start_runner()
    scene.wait_for_run(run, "failure")
    assert scene.steps(run) == [FAILED, SKIPPED]
    assert scene.logs(run) == ["before\n", ""]
    assert scene.job(run).failure_reason == FailureReason.COMMAND_FAILED


def continue_on_error(scene: Scene) -> None:
    """A step that may fail does not fail the job."""
    run = scene.submit("{run: exit 3, continue-on-error: true}", "run: echo after")
    scene.start_runner()
    scene.wait_for_run(run, "success")
    assert scene.steps(run) == [FAILED, DONE]
    assert scene.logs(run) == ["", "after\n"]


def cancel_in_the_middle(scene: Scene) -> None:
    """A cancel request stops the container of a running step."""
    run = scene.submit("run: echo begun; sleep 600", "run: echo never")
    scene.start_runner()
    scene.wait_for_output(run, "begun")
    cancellation.cancel(job_ulid=scene.job(run).job_ulid, actor=ALICE, deadline_seconds=60)
    scene.wait_for_run(run, "cancelled")
    job = scene.job(run)
    assert (job.state, job.result["status"]) == (JobState.CANCELED, "cancelled"), scene.describe(run)
    assert [status for status, _ in scene.steps(run)] == ["completed", "cancelled"]
    after = scene.submit("run: echo after")
    scene.wait_for_run(after, "success")


def time_limit_of_a_minute(scene: Scene) -> None:
    """A step that lasts longer than the job may ends by the runner's own clock, and the job ends once."""
    run = scene.submit("run: echo begun; sleep 600", "run: echo never", timeout_minutes="1")
    scene.start_runner(MINUTE_SECONDS="6")  # of the stand-in; the real program takes its time
    scene.wait_for_run(run, "failure")
    assert scene.logs(run) == ["begun\n", ""]
    assert scene.steps(run) == [FAILED, SKIPPED]
    expiry.time_out(job_ulid=scene.job(run).job_ulid, now=database_now())
    assert scene.job(run).failure_reason == FailureReason.COMMAND_FAILED


def silent_time_limit(scene: Scene) -> None:
    """The server's clock ends a job whose time is up although its runner works on; the runner then takes the next one."""
    run = scene.submit(f"run: echo begun; {WAIT}", timeout_minutes="5")
    scene.start_runner()
    scene.wait_for_output(run, "begun")
    later = database_now() + timedelta(minutes=6)
    Lease.objects.open().update(expires_at=later + timedelta(minutes=1))  # a runner that works on renews it
    assert expiry.time_out(job_ulid=scene.job(run).job_ulid, now=later) is not None
    scene.wait_for_run(run, "timed_out")
    scene.wait_for_status(404, "cancel-check")
    scene.release(run)
    after = scene.submit("run: echo after")
    scene.wait_for_run(after, "success")
    assert scene.job(run).failure_reason == FailureReason.TIMED_OUT


def secret_in_the_log(scene: Scene) -> None:
    """A secret is masked however a step prints it: plainly, in base64, and over two writes."""
    scene.set_secret("TOKEN", SECRET)
    begin, end = SECRET[:7], SECRET[7:]
    run = scene.submit(
        "{run: 'echo plain $T.', env: {T: '${{ secrets.TOKEN }}'}}",
        "{run: 'printf %s $T | base64 -w0; echo .', env: {T: '${{ secrets.TOKEN }}'}}",
        f"run: 'printf {begin}; {WAIT}; echo {end}.'",
    )
    scene.start_runner()
    eventually(lambda: _last_step_runs(scene))
    scene.release(run)
    scene.wait_for_run(run, "success")
    assert scene.logs(run) == ["plain ***.\n", "***.\n", "***.\n"]
    encoded = base64.b64encode(SECRET.encode()).decode()
    assert any(encoded in base64.b64decode(chunk).decode() for chunk in _chunks(scene, run, 1)), "the server masks it"


def _chunks(scene: Scene, run: WorkflowRun, step: int) -> list[str]:
    """The chunks that the runner has sent for a step."""
    key = scene.job(run).steps.get(index=step).pk
    bodies = [json.loads(call["body"]) for call in scene.calls.all if call["path"].endswith("/logs")]
    return [body["chunk"] for body in bodies if body["step_id"] == key]


def _last_step_runs(scene: Scene) -> bool:
    """Whether the steps before the last one have ended. The runner holds back what may become a secret."""
    return sum(bool(re.search(r"/steps/\d+/status", call["path"])) for call in scene.calls.all) == 2


def revoked_runner(scene: Scene) -> None:
    """A runner that is revoked in the middle of a job is refused, and its job ends."""
    run = scene.submit(f"run: echo begun; {WAIT}")
    scene.start_runner("first")
    scene.wait_for_output(run, "begun")
    actions_runners.revoke_runner(name="first", cause=Cause(OPERATOR, "lost"))
    scene.wait_for_status(401, "cancel-check")
    scene.release(run)
    scene.wait_for_status(401, "heartbeat")
    job = scene.job(run)
    assert job.is_final, scene.describe(run)
    assert not Lease.objects.open().exists()
    after = scene.submit("run: echo after")
    scene.start_runner("second")
    scene.wait_for_run(after, "success")


def revoked_job(scene: Scene) -> None:
    """A job that an operator ends by force is 404 for its runner, which then takes the next one."""
    run = scene.submit(f"run: echo begun; {WAIT}; echo late")
    scene.start_runner()
    scene.wait_for_output(run, "begun")
    worker_state.revoke(job_ulid=scene.job(run).job_ulid, actor=OPERATOR, reason="test")
    scene.wait_for_status(404, "cancel-check")
    scene.release(run)
    after = scene.submit("run: echo after")
    scene.wait_for_run(after, "success")
    assert scene.logs(run) == ["begun\n"]


def killed_runner(scene: Scene) -> None:
    """The job of a killed runner ends as lost without a retry, and the runner claims again when it is back."""
    run = scene.submit("run: echo begun; sleep 600")
    token = scene.start_runner()
    scene.wait_for_output(run, "begun")
    scene.kill_runner()
    job = scene.expire(run)
    assert (job.state, job.failure_reason) == (JobState.FAILED, FailureReason.LEASE_EXPIRED)
    scene.wait_for_run(run, "failure")
    assert Job.objects.count() == 1
    assert [status for status, _ in scene.steps(run)] == ["skipped"]
    after = scene.submit("run: echo after")
    scene.restart_runner(token)
    scene.wait_for_run(after, "success")


def killed_server(scene: Scene) -> None:
    """A job survives the death of the server while no call is under way: the runner continues with its token."""
    run = scene.submit(f"run: echo begun; {WAIT}; echo ended")
    scene.start_runner()
    scene.wait_for_output(run, "begun")
    scene.wait_for_calls("cancel-check")
    scene.installation.kill_server()
    eventually(lambda: "cancel-check" in scene.log_of().read_text())  # the runner has met the refused connection
    scene.installation.start_server()
    scene.release(run)
    scene.wait_for_run(run, "success")
    assert scene.logs(run) == ["begun\nended\n"]


def killed_server_in_a_report(scene: Scene) -> None:
    """A runner whose log call finds no server reports no end: its job is lost, and it takes the next one."""
    run = scene.submit(f"run: echo begun; {WAIT}; echo ended")
    scene.start_runner()
    scene.wait_for_output(run, "begun")
    scene.installation.kill_server()
    workspace = next(iter(scene.workspaces().glob("*/*")))
    scene.release(run)
    eventually(lambda: not workspace.exists())  # the runner has given the job up
    scene.installation.start_server()
    eventually(lambda: scene.calls.all[-1]["path"].endswith("heartbeat") and scene.calls.all[-1]["status"] == 204)
    assert scene.expire(run).failure_reason == FailureReason.LEASE_EXPIRED
    after = scene.submit("run: echo after")
    scene.wait_for_run(after, "success")


def fifty_jobs(scene: Scene) -> None:
    """Two runners execute 50 jobs, each once."""
    jobs = "".join(f"  job-{number}:\n    runs-on: {LABEL}\n    steps: [run: echo {number}]\n" for number in range(50))
    run = scene.submit_file(jobs)
    for name in ("first", "second"):
        scene.start_runner(name)
    scene.wait_for_run(run, "success")
    found = Job.objects.filter(batch_id=run.batch_id)
    assert (found.count(), found.filter(state=JobState.SUCCEEDED, attempt=1).count()) == (50, 50)
    assert Lease.objects.count() == 50
    assert Lease.objects.values("worker").distinct().count() == 2
    accepted = [call for call in scene.calls.all if "/jobs/" in call["path"] and call["status"] < 300]
    assert UsedToken.objects.count() == len(accepted)


def identity_token(scene: Scene) -> None:
    """A step fetches an identity token with what is in its environment; an outsider verifies it."""
    run = scene.submit(
        'run: \'curl -sS -H "Authorization: Bearer $ACTIONS_ID_TOKEN_REQUEST_TOKEN"'
        ' "$ACTIONS_ID_TOKEN_REQUEST_URL&audience=vault"; echo; echo "$ACTIONS_ID_TOKEN_REQUEST_TOKEN";'
        f" {WAIT}'",
        permissions="{id-token: write}",
    )
    scene.start_runner()
    scene.wait_for_output(run, "***")
    scene.release_after_poll(run)
    scene.wait_for_run(run, "success")
    (log,) = scene.logs(run)
    answer, printed = log.splitlines()
    assert printed == "***"
    url = scene.installation.proxy.url
    keys = requests.get(f"{url}/.well-known/jwks.json", timeout=60).json()
    token = json.loads(answer)["value"]
    key = jwt.PyJWKSet.from_dict(keys)[jwt.get_unverified_header(token)["kid"]]
    claims = jwt.decode(token, key.key, algorithms=["RS256"], audience="vault", issuer=url)
    assert claims["sub"] == "repo:alice/demo:ref:refs/heads/main"


STORIES: Final[dict[str, Callable[[Scene], None]]] = {
    story.__name__: story
    for story in (
        checkout_and_two_steps,
        failing_step,
        continue_on_error,
        cancel_in_the_middle,
        time_limit_of_a_minute,
        silent_time_limit,
        secret_in_the_log,
        revoked_runner,
        revoked_job,
        killed_runner,
        killed_server,
        killed_server_in_a_report,
        fifty_jobs,
        identity_token,
    )
}
