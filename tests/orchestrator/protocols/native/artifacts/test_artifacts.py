"""Artifacts and caches by HTTP: the lease's holder uploads, clients of the organization download."""

import errno
import hashlib
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from orchestrator.artifacts import tasks
from orchestrator.artifacts.addresses import download_url, upload_url
from runtime_jobs.models import Plan, StoredArtifact
from runtime_jobs.models.tenants import Scope
from tests.api_client import Caller, refused
from tests.factories import OrganizationFactory, ProjectFactory, api_token, claimed, submitted_steps
from tests.orchestrator.artifacts.conftest import FOLDER, use

pytestmark = pytest.mark.django_db
VERSION = "a" * 64
CONTENT = b"<script>alert(1)</script>"
SIZE = len(CONTENT)


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    use(settings, FOLDER, location=str(tmp_path / "artifacts"))
    return tmp_path / "artifacts"


@pytest.fixture
def claim(organization, worker):
    submitted_steps(ProjectFactory(organization=organization))
    return claimed(worker, job_types=("steps",))


def path_of(claim, what):
    return f"/v1/runtime/leases/{claim.lease.lease_ulid}/{what}"


def announced(wendy, claim, name="dist/report.html", size=SIZE):
    response = wendy.post(path_of(claim, "artifacts"), {"name": name, "size_bytes": size})
    assert response.status_code == 201, response.content
    return response.json()


def put(url, content, **headers):
    return Client(raise_request_exception=False).put(
        urlsplit(url).path, content, content_type="application/octet-stream", headers=headers
    )


def body(response):
    return b"".join(response.streaming_content) if response.streaming else response.content


def test_from_the_announcement_to_the_download(alice, wendy, claim):
    document = announced(wendy, claim)
    assert alice.get("/v1/artifacts").json()["results"] == []
    refused(lambda: alice.get(f"/v1/artifacts/{document['artifact_id']}"), 404, "not_found")
    sent = put(document["upload_url"], CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert (sent.status_code, sent["ETag"], sent.content) == (200, f'"{digest}"', b"")
    (listed,) = alice.get(f"/v1/artifacts?job_id={claim.job.job_ulid}").json()["results"]
    assert (listed["name"], listed["sha256"], listed["size_bytes"]) == ("dist/report.html", digest, len(CONTENT))
    shown = alice.get(f"/v1/artifacts/{document['artifact_id']}").json()
    got = Client().get(urlsplit(shown["download_url"]).path)
    assert (got.status_code, body(got)) == (200, CONTENT)
    assert got["Content-Disposition"] == 'attachment; filename="report.html"'
    assert got["Content-Type"] == "application/octet-stream"
    assert got["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in got["Content-Security-Policy"]


def test_one_range_may_be_requested(alice, wendy, claim):
    document = announced(wendy, claim)
    put(document["upload_url"], CONTENT)
    path = urlsplit(alice.get(f"/v1/artifacts/{document['artifact_id']}").json()["download_url"]).path
    part = Client().get(path, headers={"Range": "bytes=1-6"})
    assert (part.status_code, body(part), part["Content-Range"]) == (206, CONTENT[1:7], f"bytes 1-6/{len(CONTENT)}")
    outside = Client().get(path, headers={"Range": "bytes=1000-"})
    assert (outside.status_code, outside.json()["code"]) == (416, "range_not_satisfiable")
    many = Client().get(path, headers={"Range": "bytes=" + ",".join(f"{n}-{n}" for n in range(1000))})
    assert (many.status_code, body(many)) == (200, CONTENT)
    head = Client().head(path)
    assert (head.status_code, head["Content-Length"], head.content) == (200, str(len(CONTENT)), b"")


@pytest.mark.parametrize("size", [0, len(CONTENT) - 1, len(CONTENT) + 1])
def test_another_length_is_refused_by_name(alice, wendy, claim, folder, size):
    document = announced(wendy, claim)
    response = put(document["upload_url"], b"x" * size)
    assert (response.status_code, response.json()["code"]) == (422, "size_mismatch")
    assert alice.get("/v1/artifacts").json()["results"] == []
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_an_altered_address_is_refused_by_name(wendy, claim, folder):
    url = announced(wendy, claim)["upload_url"]
    for wrong in (url[:-5] + "xxxxx", url + "x", url.rpartition("/")[0] + "/nothing"):
        response = put(wrong, CONTENT)
        assert (response.status_code, response.json()["code"]) == (403, "address_not_valid")
    got = Client().get(urlsplit(url).path)
    assert (got.status_code, got.json()["code"]) == (403, "address_not_valid")
    assert StoredArtifact.objects.get().completed_at is None
    assert not folder.exists() or [path for path in folder.rglob("*") if path.is_file()] == []


def test_an_expired_address_is_refused_by_name(wendy, claim, folder):
    document = announced(wendy, claim)
    now = timezone.now()
    StoredArtifact.objects.update(upload_until=now - timedelta(seconds=1))
    late = put(upload_url(StoredArtifact.objects.get()), CONTENT)
    assert (late.status_code, late.json()["code"]) == (403, "address_not_valid")
    assert StoredArtifact.objects.get().completed_at is None
    assert not folder.exists() or [path for path in folder.rglob("*") if path.is_file()] == []
    assert put(document["upload_url"], CONTENT).status_code == 200, "the time is that of the address"
    row = StoredArtifact.objects.get()
    for age, status in ((timedelta(minutes=14), 200), (timedelta(minutes=15), 403)):
        got = Client().get(urlsplit(download_url(row, file_name="a", now=now - age)).path)
        assert got.status_code == status
        body(got)


def test_an_address_used_again_with_other_bytes_changes_nothing(alice, wendy, claim, folder):
    document = announced(wendy, claim)
    assert put(document["upload_url"], CONTENT).status_code == 200
    other = b"x" * SIZE
    again = put(document["upload_url"], other)
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert put(document["upload_url"], CONTENT).status_code == 200, "the same bytes are a repetition"
    shown = alice.get(f"/v1/artifacts/{document['artifact_id']}").json()
    assert body(Client().get(urlsplit(shown["download_url"]).path)) == CONTENT
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 1


def test_a_full_disk_is_refused_by_name(wendy, claim, folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    url = announced(wendy, claim)["upload_url"]
    with monkeypatch.context() as patched:
        patched.setattr("orchestrator.artifacts.storage.ArtifactFileStorage.publish", full)
        response = put(url, CONTENT)
    assert (response.status_code, response.json()["code"]) == (507, "storage_full")
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert put(url, CONTENT).status_code == 200


def test_a_full_quota_is_refused_by_name(wendy, claim):
    Plan.objects.update(max_stored_bytes=10)
    call = {"name": "a", "size_bytes": 11}
    document = refused(lambda: wendy.post(path_of(claim, "artifacts"), call), 402, "storage_quota_exceeded")
    assert document["limit"] == 10
    saved = {"key": "k", "version": VERSION, "size_bytes": 11}
    refused(lambda: wendy.post(path_of(claim, "caches/save"), saved), 402, "storage_quota_exceeded")
    assert not StoredArtifact.objects.exists()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "../x"}, "name"),
        ({"name": "/etc/x"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a\u202eb"}, "name"),
        ({"size_bytes": -1}, "size_bytes"),
        ({"size_bytes": "3"}, "size_bytes"),
        ({"size_bytes": 1 << 40}, "size_bytes"),
        ({"type": "x"}, "type"),
    ],
)
def test_a_bad_announcement_is_refused_by_its_field(wendy, claim, changes, field):
    response = wendy.post(path_of(claim, "artifacts"), {"name": "a", "size_bytes": 3} | changes)
    assert (response.status_code, set(response.json()["errors"])) == (400, {field})


def test_only_the_holder_of_a_live_lease_announces(alice, wendy, claim):
    call = {"name": "a", "size_bytes": 3}
    refused(lambda: alice.post(path_of(claim, "artifacts"), call), 403, "wrong_principal")
    refused(lambda: wendy.post("/v1/runtime/leases/rtl_x/artifacts", call), 409, "stale_lease")
    refused(lambda: Caller().post(path_of(claim, "artifacts"), call), 401, "unauthenticated")


def test_another_tenant_sees_nothing(wendy, claim):
    document = announced(wendy, claim)
    put(document["upload_url"], CONTENT)
    stranger = Caller(api_token(OrganizationFactory()))
    assert stranger.get("/v1/artifacts").json()["results"] == []
    refused(lambda: stranger.get(f"/v1/artifacts/{document['artifact_id']}"), 404, "not_found")


def test_reading_needs_its_scope(organization):
    blind = Caller(api_token(organization, tuple(scope for scope in Scope.values if scope != "jobs:read")))
    refused(lambda: blind.get("/v1/artifacts"), 403, "insufficient_scope")


def test_an_expired_artifact_is_gone(alice, wendy, claim):
    document = announced(wendy, claim)
    put(document["upload_url"], CONTENT)
    path = urlsplit(alice.get(f"/v1/artifacts/{document['artifact_id']}").json()["download_url"]).path
    StoredArtifact.objects.update(expires_at="2020-01-01T00:00Z")
    assert alice.get("/v1/artifacts").json()["results"] == []
    refused(lambda: alice.get(f"/v1/artifacts/{document['artifact_id']}"), 404, "not_found")
    assert tasks.delete_due_objects() == 1
    got = Client().get(path)
    assert (got.status_code, got.json()["code"]) == (404, "not_found")


def test_a_cache_is_saved_and_restored(wendy, claim):
    key = {"key": "deps-1", "version": VERSION}
    nothing = wendy.post(path_of(claim, "caches/restore"), key)
    assert (nothing.status_code, nothing.json()["key"], nothing.json()["download_url"]) == (200, None, None)
    saved = wendy.post(path_of(claim, "caches/save"), key | {"size_bytes": 3})
    assert saved.status_code == 201
    assert put(saved.json()["upload_url"], b"abc").status_code == 200
    found = wendy.post(path_of(claim, "caches/restore"), key | {"key": "deps-2", "restore_keys": ["deps-"]}).json()
    assert (found["key"], found["size_bytes"]) == ("deps-1", 3)
    assert body(Client().get(urlsplit(found["download_url"]).path)) == b"abc"
    again = wendy.post(path_of(claim, "caches/save"), key | {"size_bytes": 3})
    assert (again.status_code, again.json()["upload_url"]) == (200, None)
