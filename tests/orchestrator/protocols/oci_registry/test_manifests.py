"""Manifests, tags and referrers of the OCI distribution API."""

import errno
import json
from urllib.parse import unquote

import pytest

from orchestrator.images import manifests
from orchestrator.images.digests import Digest
from orchestrator.images.manifest_documents import DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST
from orchestrator.images.models import ImageManifest, ImageTag
from orchestrator.images.storage import ImageFileStorage
from tests.orchestrator.images.world import (
    content,
    descriptor,
    error_of,
    index,
    manifest,
    stored,
    unnamed_files,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def config(project):
    """A config that the repository has."""
    data = json.dumps({"architecture": "amd64", "os": "linux"}).encode()
    stored(project, data)
    return data


def put(docker, reference, body, content_type=OCI_MANIFEST):
    return docker.call("PUT", f"adapter/manifests/{reference}", body, content_type)


class TestPush:
    def test_by_tag(self, docker, config):
        body = manifest(config)
        digest = str(Digest.of(body))
        done = put(docker, "v1", body)
        assert (done.status_code, done["Location"]) == (201, f"/v2/adapter/manifests/{digest}")
        assert done["Docker-Content-Digest"] == digest
        assert "OCI-Subject" not in done
        for reference in ("v1", digest):
            found = docker.call("GET", f"adapter/manifests/{reference}")
            assert (found.status_code, found.body, found["Content-Type"]) == (200, body, OCI_MANIFEST)
            assert found["Docker-Content-Digest"] == digest
            assert found["Content-Disposition"] == "attachment"
            head = docker.call("HEAD", f"adapter/manifests/{reference}")
            assert (head.status_code, head["Content-Length"], head.body) == (200, str(len(body)), b"")
            assert (head["Docker-Content-Digest"], head["Content-Type"]) == (digest, OCI_MANIFEST)

    def test_the_bytes_stay_as_they_are(self, docker, config):
        body = manifest(config).replace(b": ", b" :\n\t") + b"\n\n"
        put(docker, "v1", body)
        assert docker.call("GET", "adapter/manifests/v1").body == body

    @pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
    def test_by_digest(self, docker, config, algorithm):
        body = manifest(config)
        digest = Digest.of(body, algorithm)
        assert put(docker, digest, body)["Docker-Content-Digest"] == str(digest)
        assert docker.call("GET", f"adapter/manifests/{digest}").body == body
        assert ImageTag.objects.count() == 0

    def test_by_digest_with_tags(self, docker, config):
        body = manifest(config)
        done = put(docker, f"{Digest.of(body)}?tag=a&tag=b&tag=a", body)
        assert (done.status_code, done["OCI-Tag"]) == (201, "a, b")
        assert docker.call("GET", "adapter/manifests/b").body == body

    def test_a_header_of_tags_is_bounded(self, docker, config):
        """Proxies answer 502 for larger headers. A client pushes the other tags by themselves."""
        body = manifest(config)
        tags = [f"{number:0128}" for number in range(100)]
        done = put(docker, f"{Digest.of(body)}?{'&'.join(f'tag={tag}' for tag in tags)}", body)
        named = done["OCI-Tag"].split(", ")
        assert (done.status_code, named) == (201, tags[: len(named)])
        assert 1900 < len(done["OCI-Tag"]) <= 2048
        assert ImageTag.objects.count() == 100

    def test_a_full_disk_is_503(self, docker, config, monkeypatch):
        def create_part(_storage):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(ImageFileStorage, "create_part", create_part)
        done = put(docker, "a", manifest(config))
        error_of(done, 503, "UNKNOWN")
        assert done["Retry-After"] == "1"

    def test_a_tag_moves(self, docker, config):
        first, second = manifest(config), manifest(config, annotations={"n": "2"})
        for body in (first, second, first):
            put(docker, "v1", body)
            assert docker.call("GET", "adapter/manifests/v1").body == body
        assert ImageManifest.objects.count() == 2

    def test_a_type_with_parameters(self, docker, config):
        body = manifest(config, mediaType=DOCKER_MANIFEST)
        put(docker, "v1", body, f"{DOCKER_MANIFEST}; charset=utf-8")
        assert docker.call("GET", "adapter/manifests/v1")["Content-Type"] == DOCKER_MANIFEST

    def test_another_digest_is_400(self, docker, config):
        error_of(put(docker, Digest.of(b"x"), manifest(config)), 400, "DIGEST_INVALID")
        assert ImageManifest.objects.count() == 0

    @pytest.mark.parametrize("reference", ["sha256:baddigeststring", "sha256:" + "0" * 65, "a:b"])
    def test_a_malformed_digest_is_400(self, docker, config, reference):
        error_of(put(docker, reference, manifest(config)), 400, "DIGEST_INVALID")
        for method in ("GET", "DELETE"):
            error_of(docker.call(method, f"adapter/manifests/{reference}"), 404, "MANIFEST_UNKNOWN")

    @pytest.mark.parametrize("tag", [".x", "-x", "x" * 129, "a b", "ä", "a%00b", "a%0ab", "a@b"])
    def test_a_malformed_tag_is_400(self, docker, config, tag):
        error_of(put(docker, tag, manifest(config)), 400, "MANIFEST_INVALID")
        error_of(docker.call("GET", f"adapter/manifests/{tag}"), 404, "MANIFEST_UNKNOWN")

    def test_a_malformed_tag_beside_a_digest_is_400_and_nothing_is_stored(self, docker, config):
        body = manifest(config)
        error_of(put(docker, f"{Digest.of(body)}?tag=a&tag=-b", body), 400, "MANIFEST_INVALID")
        assert ImageManifest.objects.count() == 0

    def test_a_missing_blob_is_400(self, docker, config):
        missing = content()
        error = error_of(put(docker, "v1", manifest(config, missing)), 400, "MANIFEST_BLOB_UNKNOWN")
        assert error["detail"]["digests"] == [str(Digest.of(missing))]
        error_of(docker.call("GET", "adapter/manifests/v1"), 404, "MANIFEST_UNKNOWN")

    def test_a_size_that_is_wrong_is_400(self, docker, config):
        wrong = descriptor(config, "a/b") | {"size": 1}
        error_of(put(docker, "v1", manifest(config, config=wrong)), 400, "MANIFEST_INVALID")

    def test_an_index_needs_its_manifests(self, docker, config):
        child = manifest(config)
        error_of(put(docker, "v1", index(child), OCI_INDEX), 400, "MANIFEST_BLOB_UNKNOWN")
        put(docker, Digest.of(child), child)
        assert put(docker, "v1", index(child), OCI_INDEX).status_code == 201
        nested = json.loads(index()) | {"manifests": [descriptor(index(child), OCI_INDEX)]}
        assert put(docker, "nested", json.dumps(nested).encode(), OCI_INDEX).status_code == 201

    def test_ten_megabytes_and_one_byte_is_413(self, docker, config):
        body = manifest(config)
        assert put(docker, "v1", body + b" " * (10_000_000 - len(body))).status_code == 201
        error_of(put(docker, "v2", body + b" " * (10_000_001 - len(body))), 413, "MANIFEST_INVALID")

    def test_manifests_and_tags_of_a_repository_are_limited(self, docker, config, monkeypatch):
        monkeypatch.setattr(manifests, "MAX_ROWS_PER_REPOSITORY", 2)
        body = manifest(config)
        assert put(docker, f"{Digest.of(body)}?tag=a&tag=b", body).status_code == 201
        error_of(put(docker, "c", body), 403, "DENIED")
        assert put(docker, "a", manifest(config, annotations={"n": "2"})).status_code == 201
        error_of(put(docker, "a", manifest(config, annotations={"n": "3"})), 403, "DENIED")
        assert (ImageManifest.objects.count(), ImageTag.objects.count(), unnamed_files()) == (2, 2, set())

    def test_no_body_is_400(self, docker):
        error_of(put(docker, "v1", b""), 400, "MANIFEST_INVALID")


class TestDeletion:
    def test_of_a_tag(self, docker, config):
        body = manifest(config)
        put(docker, "a", body)
        put(docker, "b", body)
        assert docker.call("DELETE", "adapter/manifests/a").status_code == 202
        assert [docker.call("GET", f"adapter/manifests/{tag}").status_code for tag in "ab"] == [404, 200]

    def test_of_a_manifest_with_its_tags(self, docker, config):
        body = manifest(config)
        put(docker, "a", body)
        path = f"adapter/manifests/{Digest.of(body)}"
        assert docker.call("DELETE", path).status_code == 202
        for method, target in (("GET", "adapter/manifests/a"), ("GET", path), ("DELETE", path)):
            error_of(docker.call(method, target), 404, "MANIFEST_UNKNOWN")


class TestTags:
    @pytest.fixture
    def tags(self, docker, config):
        names = ["B", "a", "b", "0", "_", "a.1", "latest"]
        body = manifest(config)
        done = put(docker, f"{Digest.of(body)}?" + "&".join(f"tag={name}" for name in names), body)
        assert done.status_code == 201
        return sorted(names)

    def test_in_the_order_of_their_bytes(self, docker, tags):
        response = docker.call("GET", "adapter/tags/list")
        assert response.json() == {"name": "adapter", "tags": tags}
        assert "Link" not in response

    def test_pages_are_linked(self, docker, tags):
        path, found = "adapter/tags/list?n=3", []
        for _ in range(3):
            response = docker.call("GET", path)
            found += response.json()["tags"]
            link = response.get("Link", "")
            assert link == "" or link.endswith('>; rel="next"')
            path = unquote(link.removeprefix("</v2/").removesuffix('>; rel="next"'))
        assert (found, path) == (tags, "")

    def test_after_a_tag(self, docker, tags):
        assert docker.call("GET", "adapter/tags/list?last=a").json()["tags"] == ["a.1", "b", "latest"]
        assert docker.call("GET", "adapter/tags/list?last=a%00").json()["tags"] == ["a.1", "b", "latest"]

    def test_none(self, docker, tags):
        response = docker.call("GET", "adapter/tags/list?n=0")
        assert (response.json()["tags"], "Link" in response) == ([], False)

    @pytest.mark.parametrize("number", ["-1", "x", "1.5", "", "٣", "9" * 19])
    def test_a_wrong_number_is_400(self, docker, project, number):
        error_of(docker.call("GET", f"adapter/tags/list?n={number}"), 400, "UNSUPPORTED")

    def test_an_empty_repository_has_no_tags(self, docker):
        assert docker.call("GET", "adapter/tags/list").json() == {"name": "adapter", "tags": []}


class TestReferrers:
    @pytest.fixture
    def subject(self, docker, config):
        body = manifest(config)
        put(docker, "v1", body)
        return body

    def refer(self, docker, config, subject, **members):
        body = manifest(config, subject=descriptor(subject, OCI_MANIFEST), **members)
        done = put(docker, Digest.of(body), body)
        assert (done.status_code, done["OCI-Subject"]) == (201, str(Digest.of(subject)))
        return body

    def listed(self, docker, subject, query=""):
        response = docker.call("GET", f"adapter/referrers/{Digest.of(subject)}{query}")
        assert (response.status_code, response["Content-Type"]) == (200, OCI_INDEX)
        document = response.json()
        assert (document["schemaVersion"], document["mediaType"]) == (2, OCI_INDEX)
        return response, document["manifests"]

    def test_none(self, docker, project):
        assert self.listed(docker, b"nothing")[1] == []

    def test_with_type_and_annotations(self, docker, config, subject):
        body = self.refer(docker, config, subject, artifactType="a/b", annotations={"k": "v", "n": "\0"})
        plain = self.refer(docker, config, subject)
        config_type = json.loads(plain)["config"]["mediaType"]
        assert self.listed(docker, subject)[1] == [
            descriptor(body, OCI_MANIFEST, artifactType="a/b", annotations={"k": "v", "n": "\0"}),
            descriptor(plain, OCI_MANIFEST, artifactType=config_type),
        ]

    def test_a_subject_may_follow_later(self, docker, config):
        body = self.refer(docker, config, b"unknown")
        assert [entry["digest"] for entry in self.listed(docker, b"unknown")[1]] == [str(Digest.of(body))]

    def test_an_index_without_a_type_has_none(self, docker, config, subject):
        body = index(subject, subject=descriptor(subject, OCI_MANIFEST))
        assert put(docker, "i", body, OCI_INDEX)["OCI-Subject"] == str(Digest.of(subject))
        assert self.listed(docker, subject)[1] == [descriptor(body, OCI_INDEX)]

    def test_by_type(self, docker, config, subject):
        wanted = self.refer(docker, config, subject, artifactType="a/b")
        self.refer(docker, config, subject, artifactType="c/d")
        response, found = self.listed(docker, subject, "?artifactType=a/b")
        assert [entry["digest"] for entry in found] == [str(Digest.of(wanted))]
        assert response["OCI-Filters-Applied"] == "artifactType"

    def test_pages_are_linked(self, docker, config, subject, monkeypatch):
        monkeypatch.setattr(manifests, "REFERRERS_PER_PAGE", 2)
        pushed = [self.refer(docker, config, subject, annotations={"n": str(n)}) for n in range(3)]
        response, first = self.listed(docker, subject)
        following = docker.call("GET", response["Link"].removeprefix("</v2/").removesuffix('>; rel="next"'))
        found = [entry["digest"] for entry in first + following.json()["manifests"]]
        assert (len(first), found) == (2, [str(Digest.of(body)) for body in pushed])
        assert "Link" not in following

    def test_a_page_is_bounded_in_bytes(self, docker, config, subject, monkeypatch):
        monkeypatch.setattr(manifests, "REFERRER_BYTES_PER_PAGE", 30)
        for n in range(3):
            self.refer(docker, config, subject, annotations={"n": str(n) * 18})
        response, found = self.listed(docker, subject)
        assert (len(found), "Link" in response) == (1, True)

    def test_a_malformed_digest_is_400(self, docker):
        error_of(docker.call("GET", "adapter/referrers/latest"), 400, "DIGEST_INVALID")

    def test_a_deleted_referrer_is_gone(self, docker, config, subject):
        body = self.refer(docker, config, subject)
        docker.call("DELETE", f"adapter/manifests/{Digest.of(body)}")
        assert self.listed(docker, subject)[1] == []
