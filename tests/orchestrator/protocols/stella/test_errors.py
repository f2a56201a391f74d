"""Errors of the services in the words of document 004."""

from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.stella.errors import translated
from runtime_jobs.identifiers import uuid_of

JOB = "rtj_01kkygkagq0jk17bx6y1w8c3df"


def test_ids_fields_and_statuses():
    error = ApiError(
        409,
        "conflict",
        f"timeout_seconds: {JOB} is taken.",
        errors={"depends_on": [f"{JOB} is missing."], "payload": ["x"]},
        job_status="uploaded",
        newer_job_id=JOB,
        limit=5,
    )
    found = translated(error)
    uuid = str(uuid_of(JOB))
    assert found.detail == f"timeoutSeconds: {uuid} is taken."
    assert found.members == {
        "errors": {"dependencies": [f"{uuid} is missing."], "payload": ["x"]},
        "job_status": "completed",
        "newer_job_id": uuid,
        "limit": 5,
    }
    assert found.code == "conflict"
