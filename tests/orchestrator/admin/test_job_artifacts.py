"""A job's artifacts, on its page and in the native API: displayed as text, and as links only where that is safe."""

import pytest

from orchestrator.admin.jobs.artifacts import is_safe_link
from orchestrator.services import claiming, job_end
from orchestrator.services.job_end import ArtifactRef
from runtime_jobs.models import FailureExplanation, Organization
from runtime_jobs.states import FailureReason
from tests.api_client import Caller
from tests.factories import WorkerFactory, api_token, claimed, offer, submitted, submitted_steps
from tests.orchestrator.admin.test_job_page import page_of
from tests.orchestrator.protocols.native.conftest import organization

__all__ = ["organization"]
HARMLESS = ["https://logs.example/a?b=c#d", "http://192.0.2.1:8080/x"]
EVIL = [
    "javascript:alert(1)", "JaVaScRiPt:alert(1)", "\u2028javascript:alert(1)", "data:text/html,<script>", "vbscript:x",
    "//evil.example/x", "https:evil", "https://", "https://user@evil.example/", "https://[::1", "s3://bucket/log.txt",
    "file:///etc/passwd", "log.txt", "/admin/logout/", '"><script>alert(1)</script>',
]  # fmt: skip


@pytest.mark.parametrize("uri", HARMLESS)
def test_an_address_of_the_web_is_safe_link(uri):
    assert is_safe_link(uri)


@pytest.mark.parametrize("uri", EVIL)
def test_nothing_else_may(uri):
    assert not is_safe_link(uri)


def failed(job_type=submitted_steps, **kwargs):
    worker = WorkerFactory()
    job = job_type(**kwargs)
    lease = claiming.claim(worker=worker, offer=offer(worker, job_types=(job.job_type,))).lease
    job_end.fail(
        lease_ulid=lease.lease_ulid,
        worker=worker,
        reason=FailureReason.COMMAND_FAILED,
        message="<b>bold</b>",
        exit_code=2,
        artifacts=[ArtifactRef("log", uri) for uri in (*HARMLESS, *EVIL)],
    )
    job.refresh_from_db()
    return job


def test_its_page_links_only_what_is_safe_link(olga, db):
    page = page_of(olga, failed()).content.decode()
    assert "<h2>Artifacts" in page
    for uri in HARMLESS:
        assert f'href="{uri}"' in page
    assert page.count('rel="noopener noreferrer nofollow"') == len(HARMLESS)
    assert "javascript:alert(1)" in page, "as text"
    assert 'href="javascript' not in page.lower()
    assert "<script>alert(1)" not in page
    assert "<b>bold</b>" not in page
    assert "The command failed (exit code 2)." in page


def test_a_page_of_a_job_that_left_nothing_says_nothing_of_it(olga, db):
    assert "<h2>Artifacts" not in page_of(olga, submitted()).content.decode()


def test_the_native_api_shows_both(organization):
    job = failed(project=organization.projects.get())
    alice = Caller(api_token(Organization.objects.get()))
    shown = alice.get(f"/v1/jobs/{job.job_ulid}").json()
    assert [one["uri"] for one in shown["artifacts"]] == [*HARMLESS, *EVIL]
    assert {one["artifact_id"][:4] for one in shown["artifacts"]} == {"art_"}
    assert shown["explanation"] == {
        "category": "USER",
        "confidence": "LOW",
        "summary": "The command failed (exit code 2).",
        "details": "<b>bold</b> | exit code 2 | https://logs.example/a?b=c#d",
    }
    untouched = alice.get(f"/v1/jobs/{submitted_steps(organization.projects.get()).job_ulid}").json()
    assert (untouched["artifacts"], untouched["explanation"]) == ([], None)


@pytest.mark.parametrize("reason", [FailureReason.WORKER_ERROR, FailureReason.TIMED_OUT])
def test_only_a_command_that_failed_is_explained(db, reason):
    submitted()
    taken = claimed()
    job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=taken.lease.worker, reason=reason)
    assert not FailureExplanation.objects.exists()
