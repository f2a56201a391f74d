"""The job type `oci`: the job config of a runner, the requirement of its hardware spec, the policy of runners."""

import json

import pytest

from orchestrator.services.submission import submit
from runtime_jobs.models import Job
from runtime_jobs.specs import JOB_TYPES, OCI, OciSpec, config_of, configured_policy, spec_uuid_of
from runtime_jobs.specs.oci import MAX_VARIABLES, validate_variables
from tests.api_client import Caller, refused
from tests.factories import (
    ALICE,
    SUBMIT_ANY_BODY,
    OrganizationFactory,
    PlanFactory,
    PoolFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    submission,
)

SPEC = "019a2b1c-0000-7000-8000-000000000001"
PROJECT = "00000000-0000-0000-0000-000000000099"
DIGEST = "sha256:" + "0123456789abcdef" * 4
LEAST = {
    "hardware_spec": SPEC,
    "least_isolation": "none",
    "registry": "http://localhost:8000/",
    "project": PROJECT,
    "image_digest": DIGEST,
    "timeout_seconds": 300,
}
MOST = LEAST | {
    "least_isolation": "microvm",
    "image": f"adapter@{DIGEST}",
    "entrypoint": ("/bin/bench",),
    "cmd": ("--all", ""),
    "env": {"CI": "true", "EMPTY": ""},
    "file_paths": ("/out.json",),
    "build_time": True,
    "file_size": False,
    "average": "median",
    "iterations": 3,
    "fold": "min",
    "allow_failure": True,
    "backdate": "2026-01-01T00:00:00Z",
}
WHOLE_CONFIG = {
    "registry": "http://localhost:8000/",
    "project": PROJECT,
    "digest": DIGEST,
    "timeout": 300,
    "image": f"adapter@{DIGEST}",
    "entrypoint": ["/bin/bench"],
    "cmd": ["--all", ""],
    "env": {"CI": "true", "EMPTY": ""},
    "file_paths": ["/out.json"],
    "build_time": True,
    "file_size": False,
    "average": "median",
    "iter": 3,
    "fold": "min",
    "allow_failure": True,
    "backdate": "2026-01-01T00:00:00Z",
}


def submitted_oci(project=None, /, *, now=None, **changes) -> Job:
    """A queued job of type `oci`."""
    given = submission(project or ProjectFactory(), OciSpec(**LEAST | changes))
    return submit(given, policy=configured_policy(OCI), default_pool="shared-linux", actor=ALICE, now=now).job


def test_members_without_a_value_are_absent_from_the_config():
    assert OciSpec(**LEAST).config() == {
        "registry": "http://localhost:8000/",
        "project": PROJECT,
        "digest": DIGEST,
        "timeout": 300,
    }


def test_the_config_has_the_names_of_the_contract():
    config = OciSpec(**MOST).config()
    assert config == WHOLE_CONFIG
    assert json.loads(json.dumps(config)) == config, "plain JSON"


@pytest.mark.django_db
@pytest.mark.parametrize("values", [LEAST, MOST], ids=["least", "most"])
def test_a_job_has_the_specification_that_was_submitted(values):
    wanted = OciSpec(**values)
    job = Job.objects.get(pk=submitted_oci(**values).pk)
    assert JOB_TYPES[OCI].from_job(job) == wanted
    assert JOB_TYPES[OCI].from_job(job).digest == job.payload_digest == wanted.digest
    assert (config_of(job), str(spec_uuid_of(job))) == (wanted.config(), SPEC)
    assert JOB_TYPES[OCI].serialize(job) == {"spec": SPEC, "config": wanted.config()}
    leased = JOB_TYPES[OCI].serialize_for_lease(job, {"least_isolation": job.least_isolation, "egress": []})
    assert leased["oci"]["config"] == wanted.config()
    assert job.timeout_seconds == 300


@pytest.mark.django_db
def test_a_job_waits_in_the_pool_of_runners_for_its_hardware_spec(settings):
    settings.RUNNER_POOL = "machines"
    job = submitted_oci(ProjectFactory(pool="elsewhere", least_isolation="namespaces"), **MOST)
    assert (job.pool, job.requirements, job.least_isolation) == ("machines", [f"spec:{SPEC}"], "microvm")


@pytest.mark.django_db
def test_a_project_that_no_operator_has_enabled_may_submit(settings):
    """Neither hosted runtime analysis of the organization nor the switch of the project concerns runners."""
    project = ProjectFactory(enabled=False, organization=OrganizationFactory(hosted_runtime_analysis=False))
    assert submitted_oci(project).state == "queued"


def test_the_policy_is_that_of_runners(settings):
    settings.RUNNER_HEARTBEAT_TIMEOUT_SECONDS, settings.RUNNER_LATE_RESULT_SECONDS = 5, 77
    settings.RUNNER_TIMEOUT_GRACE_SECONDS = 11
    policy = configured_policy(OCI)
    assert (policy.lease_ttl_seconds, policy.acknowledge_within_seconds, policy.heartbeat_interval_seconds) == (5, 5, 1)
    assert (policy.max_requeues, policy.automatic_retries) == (0, 0), "no requeue, no retry"
    assert (policy.late_result_seconds, policy.timeout_grace_seconds) == (77, 11)
    assert (policy.needs_processing, policy.is_metered) == (True, True)
    assert (policy.needs_ingest, policy.complete_beats_cancel) == (False, False)


def test_other_types_keep_the_durations_of_the_installation(settings):
    settings.LEASE_TTL_SECONDS, settings.RUNNER_HEARTBEAT_TIMEOUT_SECONDS = 120, 5
    assert configured_policy("steps").lease_ttl_seconds == 120
    assert configured_policy("steps").late_result_seconds == 0


@pytest.mark.django_db
def test_the_plan_gives_the_priority_and_the_limit_of_an_address():
    plan = PlanFactory(name="alone", priority=0, one_per_address=True)
    job = submitted_oci(ProjectFactory(organization=OrganizationFactory(plan=plan)))
    assert (job.priority, job.limited_by_address, job.source_address) == (0, True, "127.0.0.1")


@pytest.mark.parametrize(
    ("env", "is_valid"),
    [
        ({"A": "b=c"}, True),
        ({str(n): "" for n in range(MAX_VARIABLES)}, True),
        ({str(n): "" for n in range(MAX_VARIABLES + 1)}, False),
        ({"": "x"}, False),
        ({"A=B": "x"}, False),
        ({"A": "x\0"}, False),
    ],
)
def test_environment_variables(env, is_valid):
    assert (validate_variables(env) is None) == is_valid


@pytest.mark.django_db
def test_the_native_api_shows_the_job_and_creates_none():
    project = ProjectFactory()
    job, alice = submitted_oci(project, **MOST), Caller(api_token(project.organization))
    shown = alice.get(f"/v1/jobs/{job.job_ulid}").json()
    assert (shown["job_type"], shown["spec"]) == (OCI, {"spec": SPEC, "config": WHOLE_CONFIG})
    assert [listed["job_id"] for listed in alice.get("/v1/jobs?job_type=oci").json()["results"]] == [job.job_ulid]
    body = SUBMIT_ANY_BODY | {"job_type": OCI, "spec": {"spec": SPEC, "config": WHOLE_CONFIG}}
    refused(lambda: alice.post("/v1/jobs", body), 400, "invalid")


@pytest.mark.django_db
def test_a_worker_of_the_pool_that_offers_the_label_gets_the_config(settings):
    job = submitted_oci(**LEAST)
    worker = WorkerFactory(pool=PoolFactory(slug=settings.RUNNER_POOL, least_isolation="none"), labels=[f"spec:{SPEC}"])
    claim = {"worker_id": worker.worker_id, "job_types": [OCI], "labels": [f"spec:{SPEC}"], "capabilities": {}}
    leased = Caller(worker.token).post("/v1/runtime/leases", claim).json()["job"]
    assert (leased["job_id"], leased["oci"]["spec"]) == (job.job_ulid, SPEC)
    assert (leased["oci"]["config"], leased["source"]) == (config_of(job), None)


@pytest.mark.django_db
def test_the_admin_shows_the_job(admin_client):
    job = submitted_oci(**MOST)
    assert admin_client.get(f"/admin/runtime_jobs/job/{job.job_ulid}/change/").status_code == 200
    assert admin_client.get("/admin/runtime_jobs/job/").status_code == 200
