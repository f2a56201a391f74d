"""The API and the page of a job say what its worker left out of the log and of the files."""

import pytest

from runtime_jobs.models import Job
from tests.api_client import refused
from tests.factories import claimed, submitted, submitted_steps

pytestmark = pytest.mark.django_db
LEASES = "/v1/runtime/leases"
LOST = {"bytes": 2_097_207, "lines": 68_122}
OMITTED = {"files": [], "files_omitted": 46, "files_omitted_reasons": {"too_many_files": 44, "name_refused": 2}}


def test_what_was_left_out_is_said_where_the_job_is_shown(wendy, worker, alice, admin_client, organization):
    project = organization.projects.get()
    failed = {"status": "failed", "reason": "command_failed", "log_truncated": LOST, **OMITTED}
    for job, word, result in (
        (submitted_steps(project), "complete", {"status": "succeeded", "log_truncated": LOST, **OMITTED}),
        (submitted_steps(project), "fail", failed),
        (submitted(project), "fail", failed),
    ):
        lease = claimed(worker, job_types=(job.job_type,)).lease
        assert wendy.post(f"{LEASES}/{lease.lease_ulid}/{word}", {"result": result}).status_code == 200
        for path in ["/v1/jobs", *(["/v1/runtime/jobs"] if job.job_type == "runtime" else [])]:
            assert alice.get(f"{path}/{job.job_ulid}").json()["log_truncated"] == LOST
        stored = alice.get(f"/v1/jobs/{job.job_ulid}").json()["result"]
        assert {name: stored[name] for name in OMITTED} == OMITTED
        page = admin_client.get(f"/admin/runtime_jobs/job/{job.job_ulid}/change/").content.decode()
        assert "2,097,207 bytes in 68,122 lines between them were dropped." in page
        assert "46 files left out of the artifacts: name refused, too many files." in page
    assert Job.objects.filter(state__in=["succeeded", "failed"]).count() == 3


def test_a_job_of_which_nothing_was_left_out_says_nothing(wendy, worker, alice, organization):
    job = submitted_steps(organization.projects.get())
    lease = claimed(worker, job_types=("steps",)).lease
    address = f"{LEASES}/{lease.lease_ulid}/complete"
    for wrong in ({"log_truncated": {"bytes": 0, "lines": 0}}, {"log_truncated": {"bytes": 1}},
                  {"log_truncated": None}, {"files_omitted_reasons": {"x": "y"}}):  # fmt: skip
        refused(lambda wrong=wrong: wendy.post(address, {"result": {"status": "succeeded", **wrong}}), 400, "invalid")
    assert wendy.post(address, {"result": {"status": "succeeded"}}).status_code == 200
    assert alice.get(f"/v1/jobs/{job.job_ulid}").json()["log_truncated"] is None
