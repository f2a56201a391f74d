"""Blobs and uploads of the OCI distribution API."""

import io

import pytest

from orchestrator.http.ranged_response import MAX_BLOCK_BYTES, MIN_BLOCK_BYTES, BlockSizes
from orchestrator.images.digests import Digest
from orchestrator.images.manifest_documents import OCI_MANIFEST
from orchestrator.images.models import BlobUpload
from tests.orchestrator.images.world import Docker, content, error_of, manifest, stored, stored_files, token

pytestmark = pytest.mark.django_db
EMPTY = Digest.of(b"")


class TestUploads:
    def test_post_then_put(self, docker, project):
        data = content()
        digest = Digest.of(data)
        begun = docker.call("POST", "adapter/blobs/uploads/")
        upload = BlobUpload.objects.get().uuid
        assert begun.status_code == 202
        assert begun["Location"] == f"/v2/adapter/blobs/uploads/{upload}"
        assert (begun["Range"], begun["Docker-Upload-UUID"]) == ("0-0", str(upload))
        done = docker.call("PUT", f"adapter/blobs/uploads/{upload}?digest={digest}", data)
        assert (done.status_code, done["Location"]) == (201, f"/v2/adapter/blobs/{digest}")
        assert done["Docker-Content-Digest"] == str(digest)
        assert docker.call("GET", f"adapter/blobs/{digest}").body == data

    def test_one_post(self, docker):
        data = content()
        done = docker.call("POST", f"adapter/blobs/uploads/?digest={Digest.of(data)}", data)
        assert (done.status_code, done["Location"]) == (201, f"/v2/adapter/blobs/{Digest.of(data)}")
        assert BlobUpload.objects.count() == 0

    def test_the_path_may_have_no_slash(self, docker):
        assert docker.call("POST", "adapter/blobs/uploads").status_code == 202

    def test_chunks(self, docker):
        data = content(30)
        path = docker.begin("adapter")
        for start in (0, 10):
            sent = docker.call("PATCH", path, data[start : start + 10], Content_Range=f"{start}-{start + 9}")
            assert (sent.status_code, sent["Range"]) == (202, f"0-{start + 9}")
            assert sent["Location"] == f"/v2/{path}"
        status = docker.call("GET", path)
        assert (status.status_code, status["Range"], status["Location"]) == (204, "0-19", f"/v2/{path}")
        digest = Digest.of(data)
        done = docker.call("PUT", f"{path}?digest={digest}", data[20:], Content_Range="20-29")
        assert done.status_code == 201
        assert docker.call("GET", f"adapter/blobs/{digest}").body == data
        assert docker.call("GET", path).status_code == 404

    @pytest.mark.parametrize("method", ["PATCH", "PUT"])
    @pytest.mark.parametrize("position", ["10-19", "5-14", "0-9"])
    def test_a_chunk_out_of_order_is_416_and_the_upload_continues(self, docker, method, position):
        data = content(20)
        path = docker.begin("adapter")
        if position == "10-19":
            docker.call("PATCH", path, data[:5])
        else:
            docker.call("PATCH", path, data[:10])
        query = f"?digest={Digest.of(data)}" if method == "PUT" else ""
        refusal = docker.call(method, path + query, content(10), Content_Range=position)
        error_of(refusal, 416, "BLOB_UPLOAD_INVALID")
        begun = int(docker.call("GET", path)["Range"].partition("-")[2]) + 1
        docker.call("PATCH", path, data[begun:], Content_Range=f"{begun}-19")
        assert docker.call("PUT", f"{path}?digest={Digest.of(data)}").status_code == 201

    @pytest.mark.parametrize("header", ["0-9/20", "bytes 0-9", "-9", "0-", "a-b", "0-9 ", "9" * 19 + "-1", "1-0"])
    def test_a_malformed_content_range_is_400(self, docker, header):
        path = docker.begin("adapter")
        refusal = docker.call("PATCH", path, content(10), Content_Range=header)
        assert refusal.status_code == 400, refusal.content
        assert docker.call("GET", path)["Range"] == "0-0"

    def test_a_content_range_of_another_length_is_400(self, docker):
        refusal = docker.call("PATCH", docker.begin("adapter"), content(10), Content_Range="0-10")
        error_of(refusal, 400, "SIZE_INVALID")
        assert stored_files() == []

    def test_an_empty_blob(self, docker):
        path = docker.begin("adapter")
        assert docker.call("PUT", f"{path}?digest={EMPTY}").status_code == 201
        found = docker.call("GET", f"adapter/blobs/{EMPTY}")
        assert (found.status_code, found["Content-Length"], found.body) == (200, "0", b"")

    def test_sha512(self, docker):
        data = content()
        digest = Digest.of(data, "sha512")
        assert docker.call("POST", f"adapter/blobs/uploads/?digest={digest}", data).status_code == 201
        assert docker.call("GET", f"adapter/blobs/{digest}").body == data
        assert docker.call("GET", f"adapter/blobs/{Digest.of(data)}").status_code == 404

    def test_a_wrong_digest_leaves_nothing(self, docker):
        data = content()
        path = docker.begin("adapter")
        refusal = docker.call("PUT", f"{path}?digest={Digest.of(b'x')}", data)
        error_of(refusal, 400, "DIGEST_INVALID")
        for digest in (Digest.of(b"x"), Digest.of(data)):
            assert docker.call("HEAD", f"adapter/blobs/{digest}").status_code == 404
        assert stored_files() == []

    @pytest.mark.parametrize(
        "digest", ["", "x", "sha256:abc", "md5:" + "0" * 32, "sha256:" + "A" * 64, "sha256:../../x", str(EMPTY) + "%0a"]
    )
    def test_a_malformed_digest_is_400_and_the_upload_remains(self, docker, digest):
        path = docker.begin("adapter")
        error_of(docker.call("PUT", f"{path}?digest={digest}", b"x"), 400, "DIGEST_INVALID")
        assert docker.call("GET", path).status_code == 204

    @pytest.mark.parametrize("upload", ["x", "..", "00000000-0000-0000-0000-000000000099", "A" * 36])
    def test_an_unknown_upload_is_404(self, docker, upload):
        for method in ("GET", "PATCH", "DELETE"):
            error_of(docker.call(method, f"adapter/blobs/uploads/{upload}"), 404, "BLOB_UPLOAD_UNKNOWN")
        error_of(docker.call("PUT", f"adapter/blobs/uploads/{upload}?digest={EMPTY}"), 404, "BLOB_UPLOAD_UNKNOWN")

    def test_a_canceled_upload_is_gone(self, docker):
        path = docker.begin("adapter")
        docker.call("PATCH", path, content())
        assert docker.call("DELETE", path).status_code == 204
        assert (docker.call("GET", path).status_code, stored_files()) == (404, [])

    def test_a_body_over_the_limit_is_413(self, docker, settings):
        settings.IMAGE_UPLOAD_LIMIT_BYTES = 100
        path = docker.begin("adapter")
        assert docker.call("PATCH", path, content(100)).status_code == 202
        error_of(docker.call("PATCH", path, content(101)), 413, "SIZE_INVALID")
        assert docker.call("GET", path)["Range"] == "0-99"

    def test_the_quota_is_denied(self, docker, settings):
        settings.IMAGE_QUOTA_BYTES = 100
        error_of(docker.call("PATCH", docker.begin("adapter"), content(101)), 403, "DENIED")


class Chunked:
    """The body of a chunked request, as a WSGI server that reports its end passes it."""

    def __init__(self, data):
        self.file = io.BytesIO(data)

    def extra(self):
        return {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input": self.file, "wsgi.input_terminated": True}


class TestChunkedUnderWSGI:
    def send(self, docker, method, path, data, **extra):
        authorization = docker.headers["Authorization"]
        return docker.http.generic(
            method, f"/v2/{path}", HTTP_AUTHORIZATION=authorization, **Chunked(data).extra() | extra
        )

    def test_a_part_and_a_manifest(self, docker):
        data = content(3 << 20)
        path = docker.begin("adapter")
        assert self.send(docker, "PATCH", path, data)["Range"] == f"0-{len(data) - 1}"
        assert self.send(docker, "PUT", f"{path}?digest={Digest.of(data)}", b"").status_code == 201
        body = manifest(data)
        assert self.send(docker, "PUT", "adapter/manifests/v1", body, CONTENT_TYPE=OCI_MANIFEST).status_code == 201
        assert docker.call("GET", "adapter/manifests/v1").body == body

    def test_limits_hold(self, docker, settings):
        settings.IMAGE_UPLOAD_LIMIT_BYTES = 100
        path = docker.begin("adapter")
        error_of(self.send(docker, "PATCH", path, content(101)), 413, "SIZE_INVALID")
        assert stored_files() == []
        large = self.send(docker, "PUT", "adapter/manifests/v1", b" " * 10_000_001, CONTENT_TYPE=OCI_MANIFEST)
        error_of(large, 413, "MANIFEST_INVALID")

    def test_a_server_that_does_not_report_the_end_is_411(self, docker):
        refusal = self.send(docker, "PATCH", docker.begin("adapter"), b"x", **{"wsgi.input_terminated": False})
        error_of(refusal, 411, "SIZE_INVALID")


class TestReading:
    @pytest.fixture
    def blob(self, project):
        data = content(1000)
        return data, stored(project, data)

    def test_a_blob_is_a_file_without_a_meaning(self, docker, blob):
        """A browser must not execute what a tenant has uploaded."""
        data, digest = blob
        found = docker.call("GET", f"adapter/blobs/{digest}")
        assert (found.status_code, found.body) == (200, data)
        assert found["Content-Type"] == "application/octet-stream"
        assert found["Content-Disposition"] == "attachment"
        assert found["X-Content-Type-Options"] == "nosniff"
        assert found["Content-Security-Policy"].startswith("default-src 'none'")
        assert found["Docker-Content-Digest"] == str(digest)
        assert (found["Content-Length"], found["Accept-Ranges"]) == ("1000", "bytes")

    def test_head_has_no_body(self, docker, blob):
        found = docker.call("HEAD", f"adapter/blobs/{blob[1]}")
        assert (found.status_code, found["Content-Length"], found.body) == (200, "1000", b"")
        assert found["Docker-Content-Digest"] == str(blob[1])

    @pytest.mark.parametrize(
        ("header", "start", "end"),
        [("0-0", 0, 0), ("500-599", 500, 599), ("500-", 500, 999), ("-100", 900, 999), ("900-5000", 900, 999), ("-5000", 0, 999)],
    )  # fmt: skip
    def test_a_range(self, docker, blob, header, start, end):
        data, digest = blob
        found = docker.call("GET", f"adapter/blobs/{digest}", Range=f"bytes={header}")
        assert (found.status_code, found.body) == (206, data[start : end + 1])
        assert found["Content-Range"] == f"bytes {start}-{end}/1000"
        assert found["Content-Length"] == str(end - start + 1)

    @pytest.mark.parametrize("header", ["1000-", "1000-1001", "-0", "999999999999999999-"])
    def test_a_range_outside_is_416(self, docker, blob, header):
        refusal = docker.call("GET", f"adapter/blobs/{blob[1]}", Range=f"bytes={header}")
        error_of(refusal, 416, "SIZE_INVALID")
        assert refusal["Content-Range"] == "bytes */1000"

    @pytest.mark.parametrize(
        "header", ["bytes=-", "bytes=0-1,5-6", "lines=0-1", "bytes=500-0", "bytes=a-b", "bytes=" + "9" * 40 + "-"]
    )
    def test_any_other_range_is_the_whole_blob(self, docker, blob, header):
        found = docker.call("GET", f"adapter/blobs/{blob[1]}", Range=header)
        assert (found.status_code, found.body) == (200, blob[0])

    def test_a_range_if_the_blob_is_the_same(self, docker, blob):
        data, digest = blob
        path = f"adapter/blobs/{digest}"
        same = docker.call("GET", path, Range="bytes=0-9", If_Range=f'"{digest}"')
        assert (same.status_code, same.body) == (206, data[:10])
        assert docker.call("GET", path, Range="bytes=0-9", If_Range='"x"').status_code == 200

    def test_a_file_that_is_gone_is_404(self, docker, blob, store):
        (store / stored_files()[0]).unlink()
        error_of(docker.call("GET", f"adapter/blobs/{blob[1]}"), 404, "BLOB_UNKNOWN")

    @pytest.mark.parametrize("digest", ["latest", "sha256:x", "sha256:" + "0" * 63, "sha256:%2e%2e"])
    def test_a_malformed_digest_is_400(self, docker, digest):
        error_of(docker.call("GET", f"adapter/blobs/{digest}"), 400, "DIGEST_INVALID")

    def test_a_deleted_blob_is_404(self, docker, blob):
        path = f"adapter/blobs/{blob[1]}"
        assert docker.call("DELETE", path).status_code == 202
        for method in ("GET", "HEAD", "DELETE"):
            assert docker.call(method, path).status_code == 404

    def test_a_blob_that_a_manifest_names_cannot_be_deleted(self, docker, project):
        layer = content()
        docker.push_image("adapter", "v1", layer)
        refusal = docker.call("DELETE", f"adapter/blobs/{Digest.of(layer)}")
        error_of(refusal, 405, "UNSUPPORTED")
        assert docker.call("HEAD", f"adapter/blobs/{Digest.of(layer)}").status_code == 200


class TestMount:
    def test_a_blob_of_an_own_repository_is_mounted(self, project):
        sibling = type(project).objects.create(organization=project.organization, slug="sibling")
        data = content()
        digest = stored(sibling, data)
        docker = Docker(token(project, sibling))
        done = docker.call("POST", f"adapter/blobs/uploads/?mount={digest}&from=sibling")
        assert (done.status_code, done["Location"]) == (201, f"/v2/adapter/blobs/{digest}")
        assert docker.call("GET", f"adapter/blobs/{digest}").body == data

    def test_without_a_source_all_repositories_of_the_token_are_searched(self, project):
        sibling = type(project).objects.create(organization=project.organization, slug="sibling")
        digest = stored(sibling, content())
        path = f"adapter/blobs/uploads/?mount={digest}"
        assert Docker(token(project, sibling)).call("POST", path).status_code == 201

    def test_a_blob_of_the_repository_itself_is_there(self, docker, project):
        digest = stored(project, content())
        assert docker.call("POST", f"adapter/blobs/uploads/?mount={digest}&from=adapter").status_code == 201

    def test_a_missing_blob_begins_an_upload(self, docker):
        begun = docker.call("POST", f"adapter/blobs/uploads/?mount={EMPTY}&from=adapter")
        assert (begun.status_code, BlobUpload.objects.count()) == (202, 1)

    def test_a_malformed_digest_is_400(self, docker):
        error_of(docker.call("POST", "adapter/blobs/uploads/?mount=x"), 400, "DIGEST_INVALID")


class TestBlockSizes:
    def test_a_fast_client_gets_larger_blocks_and_a_slow_one_smaller_ones(self):
        sizes = BlockSizes()
        sizes.downloads = 1
        assert sizes.next(MIN_BLOCK_BYTES, 0.1) == 2 * MIN_BLOCK_BYTES
        assert sizes.next(MAX_BLOCK_BYTES, 0.1) == MAX_BLOCK_BYTES
        assert sizes.next(MAX_BLOCK_BYTES, 1.1) == MAX_BLOCK_BYTES // 2
        assert sizes.next(MIN_BLOCK_BYTES, 1.1) == MIN_BLOCK_BYTES

    def test_many_downloads_share_the_memory(self):
        sizes = BlockSizes()
        sizes.downloads = 128
        assert sizes.next(MAX_BLOCK_BYTES, 0.1) == MAX_BLOCK_BYTES // 2
        sizes.downloads = 5000
        assert sizes.next(MAX_BLOCK_BYTES, 0.1) == MIN_BLOCK_BYTES
