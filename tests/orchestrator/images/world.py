"""Images in bytes, a store of images in a folder, and clients of the registry."""

import base64
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, TestCase

from orchestrator.images.digests import Digest
from orchestrator.images.errors import RegistryError
from orchestrator.images.manifest_documents import OCI_INDEX, OCI_MANIFEST
from orchestrator.images.models import BlobUpload, ImageBlob
from orchestrator.images.storage import UploadPart, image_storage
from orchestrator.images.tokens import PERSON_AUDIENCE, PULL, PUSH, RepositoryAccess, new_access_token
from orchestrator.images.uploads import store_blob
from runtime_jobs.models import Project

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
BOTH = (PULL, PUSH)
BACKEND = "orchestrator.images.storage.ImageFileStorage"


def storages_in(settings: Any, folder: Path) -> dict[str, Any]:
    """STORAGES with the images in this folder."""
    return settings.STORAGES | {"images": {"BACKEND": BACKEND, "OPTIONS": {"location": folder}}}


def stored_files(folder: str = "") -> list[str]:
    """The names of all files in the store."""
    return [name for name, _ in image_storage().files(folder)]


def unnamed_files() -> set[str]:
    """The files that no row names."""
    named = set(ImageBlob.objects.values_list("file", flat=True))
    named |= {name for parts in BlobUpload.objects.values_list("parts", flat=True) for name in parts}
    return set(stored_files()) - named


def missing_files() -> set[str]:
    """The files that a row names and that do not exist: a blob would be lost."""
    return set(ImageBlob.objects.values_list("file", flat=True)) - set(stored_files())


def refusal(call: Callable[[], object]) -> tuple[int, str]:
    """The status and code with which the registry refuses this call."""
    with pytest.raises(RegistryError) as found:
        call()
    return found.value.status, found.value.code


def content(size: int = 100) -> bytes:
    """Bytes that no other test has."""
    return secrets.token_bytes(size)


PARTS: list[UploadPart] = []  # of the present test


def part_of(data: bytes) -> UploadPart:
    """A part that was received. The fixture `store` discards it after the test."""
    part = UploadPart()
    PARTS.append(part)
    part.write(data)
    return part


def discard_parts() -> None:
    """End all requests that received a part."""
    while PARTS:
        PARTS.pop().discard()


def stored(project: Project, data: bytes, algorithm: str = "sha256") -> Digest:
    """Push a blob by the operations."""
    digest = Digest.of(data, algorithm)
    part = part_of(data)
    with TestCase.captureOnCommitCallbacks(execute=True):  # deletes the file of a content that is there
        store_blob(project, part, digest)
    part.discard()
    return digest


def descriptor(data: bytes, media_type: str, **members: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": str(Digest.of(data)), "size": len(data)} | members


def manifest(config: bytes, /, *layers: bytes, **members: Any) -> bytes:
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": descriptor(config, CONFIG_TYPE),
        "layers": [descriptor(layer, LAYER_TYPE) for layer in layers],
    }
    return json.dumps(document | members).encode()


def index(*manifests: bytes, **members: Any) -> bytes:
    entries = [descriptor(entry, OCI_MANIFEST) for entry in manifests]
    return json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries} | members).encode()


def token(*projects: Project, actions: tuple[str, ...] = BOTH) -> str:
    """An access token for the repositories of these projects under their slugs."""
    access = [
        RepositoryAccess(project.public_slug, project.uuid, actions, actions, project.organization.uuid)
        for project in projects
    ]
    return new_access_token("mia", access, audience=PERSON_AUDIENCE)


class Docker:
    """A client of the registry with one token."""

    def __init__(self, bearer: str | None) -> None:
        self.http = Client(raise_request_exception=False)
        self.headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}

    def call(self, method: str, path: str, body: bytes = b"", content_type: str = "", **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = self.http.generic(
            method, f"/v2/{path}", body, content_type=content_type, headers=self.headers | named
        )
        if getattr(response, "streaming", False):
            response.body = b"".join(response.streaming_content)
        else:
            response.body = response.content
        return response

    def begin(self, repository: str) -> str:
        """Begin an upload, and return its path below `/v2/`."""
        response = self.call("POST", f"{repository}/blobs/uploads/")
        assert response.status_code == 202, response.body
        return response["Location"].removeprefix("/v2/")

    def push_blob(self, repository: str, data: bytes) -> str:
        digest = str(Digest.of(data))
        response = self.call("PUT", f"{self.begin(repository)}?digest={digest}", data)
        assert response.status_code == 201, response.body
        return digest

    def push_image(self, repository: str, tag: str = "latest", *layers: bytes) -> str:
        """Push an image, and return the digest of its manifest."""
        config = json.dumps({"architecture": "amd64", "os": "linux", "nonce": secrets.token_hex(4)}).encode()
        for data in (config, *layers):
            self.push_blob(repository, data)
        response = self.call("PUT", f"{repository}/manifests/{tag}", manifest(config, *layers), OCI_MANIFEST)
        assert response.status_code == 201, response.body
        return response["Docker-Content-Digest"]


def error_of(response: Any, status: int, code: str) -> dict[str, Any]:
    """The envelope of a refusal, which it must be. Returns its only error."""
    assert response.status_code == status, (response.status_code, response.content)
    assert response["Content-Type"] == "application/json"
    assert response["Docker-Distribution-Api-Version"] == "registry/2.0"
    (error,) = response.json()["errors"]
    assert (error["code"], bool(error["message"])) == (code, True), error
    return error


def basic(password: str, user: str = "any") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
