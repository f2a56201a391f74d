"""Manifests that the registry accepts, and those that a client could misunderstand."""

import json

import pytest

from orchestrator.images import manifest_documents
from orchestrator.images.errors import RegistryError
from orchestrator.images.manifest_documents import DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, parse_manifest
from tests.orchestrator.images.world import CONFIG_TYPE, LAYER_TYPE, descriptor, index, manifest

CONFIG, LAYER = b"{}", b"layer"


def changed(**members):
    """A manifest in which members are replaced; None removes one."""
    document = json.loads(manifest(CONFIG, LAYER)) | members
    return json.dumps({name: value for name, value in document.items() if value is not None}).encode()


def with_config(**members):
    return changed(config=descriptor(CONFIG, CONFIG_TYPE, **members))


def test_a_manifest_names_its_config_and_layers():
    found = parse_manifest(manifest(CONFIG, LAYER, LAYER), OCI_MANIFEST)
    assert found.media_type == OCI_MANIFEST
    assert (str(found.config.digest), found.config.size) == (descriptor(CONFIG, "")["digest"], 2)
    assert [layer.size for layer in found.layers] == [5, 5]
    assert (found.artifact_type, found.subject, found.annotations) == (CONFIG_TYPE, None, None)


@pytest.mark.parametrize(
    ("content_type", "member", "found"),
    [
        (OCI_MANIFEST, None, OCI_MANIFEST),
        ("", OCI_MANIFEST, OCI_MANIFEST),
        (DOCKER_MANIFEST, DOCKER_MANIFEST, DOCKER_MANIFEST),
        (DOCKER_MANIFEST, None, DOCKER_MANIFEST),
    ],
)
def test_the_type_is_that_of_the_request_or_of_the_document(content_type, member, found):
    assert parse_manifest(changed(mediaType=member), content_type).media_type == found


@pytest.mark.parametrize("media_type", [OCI_INDEX, DOCKER_LIST])
def test_an_index_names_manifests(media_type):
    child = manifest(CONFIG, LAYER)
    found = parse_manifest(index(child, mediaType=media_type), media_type)
    assert (found.config, found.layers) == (None, ())
    assert list(map(str, found.manifests)) == [descriptor(child, "")["digest"]]


def test_foreign_layers_need_not_be_in_the_repository():
    foreign = [
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
    ]
    layers = [descriptor(LAYER, media_type) for media_type in (*foreign, LAYER_TYPE)]
    assert len(parse_manifest(changed(layers=layers), OCI_MANIFEST).layers) == 1


def test_a_referrer_has_its_subject_and_annotations():
    subject = descriptor(b"subject", OCI_MANIFEST)
    found = parse_manifest(changed(subject=subject, artifactType="a/b", annotations={"k": "\0"}), OCI_MANIFEST)
    assert (str(found.subject), found.artifact_type) == (subject["digest"], "a/b")
    assert json.loads(found.annotations) == {"k": "\0"}


LONG = "x" * 256


def deep_annotations():
    """Once they were parsed, and could not be encoded: 500."""
    return changed(subject=descriptor(b"", ""), annotations={"k": "DEEP"}).replace(b'"DEEP"', b"[" * 300 + b"]" * 300)


CASES = {
    "no JSON": (b"{", ""),
    "no object": (b"[]", ""),
    "a raw NUL": (b'{"a": "\0"}', ""),
    "another version": (changed(schemaVersion=1), ""),
    "no version": (changed(schemaVersion=None), ""),
    "no type at all": (changed(mediaType=None), ""),
    "a type of text": (changed(mediaType=None), "text/html"),
    "two types": (changed(), DOCKER_MANIFEST),
    "a type that is a list": (changed(mediaType=["x"]), ""),
    "a manifest that is an index, too": (changed(manifests=[]), OCI_MANIFEST),
    "an index that is a manifest, too": (index(layers=[]), OCI_INDEX),
    "an index with a config": (index(config={}), OCI_INDEX),
    "an index without manifests": (index(manifests=None), OCI_INDEX),
    "no config": (changed(config=None), ""),
    "a config that is a list": (changed(config=[]), ""),
    "no layers": (changed(layers=None), ""),
    "layers that are an object": (changed(layers={}), ""),
    "a layer that is a text": (changed(layers=["x"]), ""),
    "a digest of another algorithm": (with_config(digest="md5:" + "0" * 32), ""),
    "a digest that climbs": (with_config(digest="sha256:../../../etc/passwd"), ""),
    "a digest in capitals": (with_config(digest="sha256:" + "A" * 64), ""),
    "a digest that is a number": (with_config(digest=1), ""),
    "a negative size": (with_config(size=-1), ""),
    "a size that is a fraction": (with_config(size=1.5), ""),
    "a size that is true": (with_config(size=True), ""),
    "a huge size": (with_config(size=2**63), ""),
    "a config above its limit": (with_config(size=10_000_001), ""),
    "a subject without a digest": (changed(subject={"size": 1}), ""),
    "a subject that is a text": (changed(subject="sha256:" + "0" * 64), ""),
    "a long artifact type": (changed(artifactType=LONG), ""),
    "an artifact type with NUL": (changed(artifactType="a\0b"), ""),
    "a long type of the config": (with_config(mediaType=LONG), ""),
    "annotations that are a list": (changed(subject=descriptor(b"", ""), annotations=[]), ""),
    "nested annotations of a referrer": (changed(subject=descriptor(b"", ""), annotations={"k": {}}), ""),
    "annotations too deep to be encoded": (deep_annotations(), ""),
    "a layer with two sizes": (changed(layers=[descriptor(LAYER, ""), descriptor(LAYER, "", size=1)]), ""),
    "a config and a layer with two sizes": (changed(layers=[descriptor(CONFIG, "", size=1)]), ""),
    "large annotations of a referrer": (changed(subject=descriptor(b"", ""), annotations={"k": "x" * (256 << 10)}), ""),
}  # fmt: skip


@pytest.mark.parametrize(("body", "content_type"), CASES.values(), ids=CASES)
def test_any_other_manifest_is_invalid(body, content_type):
    with pytest.raises(RegistryError) as refusal:
        parse_manifest(body, content_type)
    assert (refusal.value.status, refusal.value.code) == (400, "MANIFEST_INVALID")


def test_a_manifest_of_ten_megabytes_is_the_largest():
    body = manifest(CONFIG, LAYER)
    largest = body + b" " * (10_000_000 - len(body))
    assert parse_manifest(largest, OCI_MANIFEST).config
    with pytest.raises(RegistryError) as refusal:
        parse_manifest(largest + b" ", OCI_MANIFEST)
    assert (refusal.value.status, refusal.value.code) == (413, "MANIFEST_INVALID")


def test_the_parts_of_a_manifest_are_bounded(monkeypatch):
    monkeypatch.setattr(manifest_documents, "MAX_DESCRIPTORS", 2)
    parse_manifest(manifest(CONFIG, LAYER, LAYER), OCI_MANIFEST)
    with pytest.raises(RegistryError, match="at most 2 entries"):
        parse_manifest(manifest(CONFIG, LAYER, LAYER, LAYER), OCI_MANIFEST)
    monkeypatch.setattr(manifest_documents, "MAX_COMMAS", 3)
    with pytest.raises(RegistryError, match="commas"):
        parse_manifest(manifest(CONFIG, LAYER), OCI_MANIFEST)
