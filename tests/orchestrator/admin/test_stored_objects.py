"""The pages of artifacts and cache entries, and the stored files on the page of a job."""

import hashlib
from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.artifacts import piece_operations
from orchestrator.artifacts.addresses import read_address, upload_url
from orchestrator.artifacts.operations import begin_cache_entry
from orchestrator.artifacts.storage import ObjectPart
from orchestrator.artifacts.uploads import store_upload
from runtime_jobs.models import CacheEntry, OperatorEvent, StorageUsage, StoredArtifact
from tests.factories import ProjectFactory, WorkerFactory, claimed, submitted_steps
from tests.orchestrator.admin.conftest import client_of, person
from tests.orchestrator.admin.pages import address
from tests.orchestrator.admin.test_job_actions import messages_of
from tests.orchestrator.admin.test_job_page import page_of
from tests.orchestrator.artifacts.conftest import FOLDER, use

EVIL = "<script>alert(1)</script>"
WHY = {"reason": "a token is in it"}


@pytest.fixture(autouse=True)
def _folder(settings, tmp_path):
    use(settings, FOLDER, location=str(tmp_path / "artifacts"))


def announced(name="dist/report.html", size=3):
    """An artifact and a cache entry of one job, announced."""
    worker = WorkerFactory()
    job = submitted_steps(ProjectFactory())
    lease = claimed(worker, job_types=("steps",)).lease
    artifact = piece_operations.begin_lease_artifact(
        lease_ulid=lease.lease_ulid, worker=worker, name=name, size_bytes=size
    )
    entry = begin_cache_entry(lease_ulid=lease.lease_ulid, worker=worker, key=name, version="a" * 64, size_bytes=size)
    return job, artifact, entry


def stored(name="dist/report.html", content=b"abc"):
    job, *rows = announced(name, len(content))
    for row in rows:
        part = ObjectPart()
        part.write(content)
        token = upload_url(row).rpartition("/")[2]
        store_upload(read_address(token, method="PUT", now=timezone.now()), part)
        part.discard()
    return job, *rows


def text_of(client, page):
    answer = client.get(page, follow=True)
    assert answer.status_code == 200, page
    return answer.content.decode()


def test_the_lists_and_pages_name_project_size_and_state(olga, db):
    job, artifact, entry = stored()
    for row in (artifact, entry):
        for page in (address(type(row), "changelist"), address(type(row), "change", row.pk)):
            text = text_of(olga, page)
            assert "dist/report.html" in text
            assert f"{job.org_slug}/{job.project_slug}" in text
            assert "complete" in text
            assert "3\N{NO-BREAK SPACE}bytes" in text
    assert job.job_ulid in text_of(olga, address(StoredArtifact, "changelist"))
    assert hashlib.sha256(b"abc").hexdigest() in text_of(olga, address(StoredArtifact, "change", artifact.pk))


def test_each_state_has_its_word(olga, db):
    _, artifact, _ = announced()
    page = address(StoredArtifact, "change", artifact.pk)
    assert "uploading" in text_of(olga, page)
    now = timezone.now()
    StoredArtifact.objects.update(completed_at=now, expires_at=now)
    assert "expired" in text_of(olga, page)
    StoredArtifact.objects.update(is_abandoned=True)
    assert "deleted" in text_of(olga, page)


def test_the_download_leads_to_a_signed_address_of_an_attachment(olga, db, settings):
    content = f"<html>{EVIL}</html>".encode()
    _, artifact, _ = stored("dist/report.html", content)
    answer = olga.get(address(StoredArtifact, "download", artifact.pk))
    assert answer.status_code == 302
    assert answer["Location"].startswith(f"{settings.PUBLIC_URL}/v1/objects/")
    found = olga.get(answer["Location"].removeprefix(settings.PUBLIC_URL))
    assert b"".join(found.streaming_content if found.streaming else [found.content]) == content
    assert found["Content-Disposition"] == 'attachment; filename="report.html"'
    assert found["X-Content-Type-Options"] == "nosniff"
    assert found["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize("state", ["uploading", "deleted", "expired"])
def test_what_is_not_visible_is_not_downloaded(olga, db, state):
    now = timezone.now()
    _, artifact, _ = announced() if state == "uploading" else stored()
    if state == "deleted":
        StoredArtifact.objects.update(is_abandoned=True)
    elif state == "expired":
        StoredArtifact.objects.update(expires_at=now - timedelta(seconds=1))
    answer = olga.get(address(StoredArtifact, "download", artifact.pk))
    assert answer["Location"] == address(StoredArtifact, "change", artifact.pk)
    assert messages_of(answer) == ["The artifact is not complete, or was deleted."]


@pytest.mark.parametrize("model", [StoredArtifact, CacheEntry])
def test_a_deletion_needs_a_reason_and_is_in_the_audit_log(olga, db, model):
    stored()
    row = model.objects.get()
    page = address(model, "delete_object", row.pk)
    assert olga.post(page, {"reason": ""}).status_code == 400
    assert not model.objects.get().is_abandoned
    assert olga.post(page, WHY).status_code == 302
    assert model.objects.get().is_abandoned
    event = OperatorEvent.objects.get()
    assert (event.action, event.reason) == (f"{model._meta.model_name}.deleted", WHY["reason"])
    assert event.before == {"object_key": row.object_key, "size_bytes": 3}
    assert StorageUsage.objects.get().byte_count == 6, "the bytes count until housekeeping has deleted the object"
    again = olga.post(page, WHY, follow=True)
    assert "does not exist, or was deleted" in again.content.decode()
    assert OperatorEvent.objects.count() == 1


def test_who_may_only_look_deletes_nothing_and_others_download_nothing(db):
    _, artifact, _ = stored()
    looker = client_of(person("lea", "runtime_jobs.view_storedartifact"))
    assert looker.get(address(StoredArtifact, "download", artifact.pk)).status_code == 302
    assert looker.post(address(StoredArtifact, "delete_object", artifact.pk), WHY).status_code == 403
    stranger = client_of(person("sven", "runtime_jobs.view_job"))
    assert stranger.get(address(StoredArtifact, "download", artifact.pk)).status_code == 403
    assert not StoredArtifact.objects.get().is_abandoned


def test_the_page_of_the_job_links_its_stored_files(olga, db):
    job, artifact, _ = stored(f"{EVIL}.html")
    text = page_of(olga, job).content.decode()
    assert f'href="{address(StoredArtifact, "download", artifact.pk)}"' in text
    assert EVIL not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.html" in text
    assert "/v1/objects/" not in text, "an address is a permission, and a page may be stored"
    viewer = client_of(person("vera", "runtime_jobs.view_job"))
    assert address(StoredArtifact, "download", artifact.pk) not in page_of(viewer, job).content.decode()


def test_the_page_of_the_job_hides_what_is_not_complete(olga, db):
    job, _, _ = announced()
    assert "dist/report.html" not in page_of(olga, job).content.decode()
