"""References to images: which registry, which project, which digest (contract 2.11)."""

from types import SimpleNamespace
from uuid import UUID

import pytest

from orchestrator.images.manifest_documents import OCI_MANIFEST
from orchestrator.images.manifests import push_manifest
from orchestrator.images.references import (
    ImageReference,
    InvalidReference,
    is_own_registry,
    parse_reference,
    registry_url,
    resolve_digest,
)
from tests.orchestrator.images.world import manifest, stored
from tests.orchestrator.protocols.bencher.runs.world import new_project

SHA256 = "sha256:" + "0123456789abcdef" * 4
SHA512 = "sha512:" + "0123456789abcdef" * 8
PROJECT = SimpleNamespace(public_slug="adapter", uuid=UUID(int=99))


@pytest.fixture(autouse=True)
def server(settings):
    settings.PUBLIC_URL = "http://localhost:61016"


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("adapter", "docker.io", "adapter", "latest", None),
        ("adapter:v1", "docker.io", "adapter", "v1", None),
        (f"adapter@{SHA256}", "docker.io", "adapter", None, SHA256),
        (f"adapter:v1@{SHA512}", "docker.io", "adapter", "v1", SHA512),
        ("docker.io/library/adapter:v1", "docker.io", "adapter", "v1", None),
        ("index.docker.io/adapter", "docker.io", "adapter", "latest", None),
        ("library/adapter", "docker.io", "adapter", "latest", None),
        ("owner/adapter", "docker.io", "owner/adapter", "latest", None),
        ("localhost/adapter", "localhost", "adapter", "latest", None),
        ("localhost:61016/adapter:v1", "localhost:61016", "adapter", "v1", None),
        ("ghcr.io/owner/repo:v1", "ghcr.io", "owner/repo", "v1", None),
        ("LOCALHOST:61016/adapter", "localhost:61016", "adapter", "latest", None),
        ("[::1]:8000/adapter", "[::1]:8000", "adapter", "latest", None),
        ("a.b/library/adapter", "a.b", "library/adapter", "latest", None),
        (f"{UUID(int=99)}:v1", "docker.io", str(UUID(int=99)), "v1", None),
    ],
)
def test_a_reference_is_read_as_docker_does(text, registry, repository, tag, digest):
    assert parse_reference(text) == ImageReference(registry, repository, tag, digest, text)


@pytest.mark.parametrize(
    "text",
    [
        "", "Adapter", "adapter:", ":v1", "adapter:v 1", "adapter@", "adapter@sha256:abc", f"adapter@{SHA256.upper()}",
        f"adapter@md5:{'0' * 32}", f"adapter@{SHA256}x", "adapter//x", "/adapter", "adapter/", "../adapter", "a\0b",
        "localhost:port/adapter", "localhost:/adapter", "-x.y/adapter", "http://localhost/adapter", "adapter:" + "x" * 129,
        "a" * 513, "adapter@@" + SHA256,
    ],
)  # fmt: skip
def test_any_other_text_is_no_reference(text):
    with pytest.raises(InvalidReference):
        parse_reference(text)


@pytest.mark.parametrize(
    ("text", "project"),
    [("adapter", "adapter"), ("library/adapter", "adapter"), ("owner/adapter", None), ("localhost/a/b", None)],
)
def test_a_repository_of_one_segment_names_the_project(text, project):
    assert parse_reference(text).project == project


def test_a_digest_alone_names_no_project():
    assert ImageReference.of_digest(SHA256).project is None
    assert resolve_digest(PROJECT, ImageReference.of_digest(SHA256)) == SHA256


@pytest.mark.parametrize(
    ("url", "own", "other"),
    [
        ("http://localhost:61016", ["docker.io", "localhost", "localhost:61016"], ["localhost:61017", "ghcr.io"]),
        ("https://b.example", ["b.example", "b.example:443"], ["b.example:80", "c.example", "b.example:8443"]),
        ("http://b.example", ["b.example", "b.example:80"], ["b.example:443"]),
        ("http://[::1]:8000", ["[::1]", "[::1]:8000"], ["::1", "[::2]:8000"]),
    ],
)
def test_the_registry_is_this_server_or_the_default_one(settings, url, own, other):
    settings.PUBLIC_URL = url
    assert [registry for registry in [*own, *other] if is_own_registry(registry)] == own


def test_another_registry_is_refused_also_with_a_digest():
    with pytest.raises(InvalidReference, match="registry ghcr"):
        resolve_digest(PROJECT, parse_reference(f"ghcr.io/adapter@{SHA256}"))


def test_a_digest_is_used_as_it_is():
    assert resolve_digest(PROJECT, parse_reference(f"localhost:61016/other:v1@{SHA256}")) == SHA256


def test_a_tag_of_another_repository_is_refused():
    with pytest.raises(InvalidReference, match="is not that of the project adapter"):
        resolve_digest(PROJECT, parse_reference("other:v1"))


@pytest.mark.parametrize("alias", ["slug", "uuid"])
def test_a_tag_is_resolved_in_the_repository_of_the_project(db, store, alias):
    project, other = new_project("adapter"), new_project("other")
    digests = {}
    for owner in (project, other):
        config = owner.slug.encode()
        stored(owner, config)
        digests[owner] = str(push_manifest(owner, manifest(config), OCI_MANIFEST, digest=None, tags=["v1"]).digest)
    repository = "adapter" if alias == "slug" else str(project.uuid)
    assert resolve_digest(project, parse_reference(f"localhost:61016/{repository}:v1")) == digests[project]
    with pytest.raises(InvalidReference, match="has no tag v2"):
        resolve_digest(project, parse_reference(f"localhost:61016/{repository}:v2"))


def test_runners_get_an_address_that_docker_takes_for_a_registry():
    assert registry_url() == "http://localhost:61016/"
    assert parse_reference(f"{registry_url().split('//')[1]}{UUID(int=99)}@{SHA256}").registry == "localhost:61016"
