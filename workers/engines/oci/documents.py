"""Parses the documents of an image: index, manifest, configuration. They are hostile: bounded, and refused by name.

The forms are those of the OCI image specification 1.1 and of Docker's schema 2.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from workers.engines.seccomp import ARCHITECTURE

MAX_MANIFEST_BYTES = 4 << 20
MAX_LAYERS = 127  # of overlay file systems; images of Docker have no more either
MAX_INDEX_DEPTH = 2
_MAX_WORDS, _MAX_TEXT = 1024, 64 << 10  # of a list in the configuration, and of one text

_OCI, _DOCKER = "application/vnd.oci.image", "application/vnd.docker"
MANIFESTS = (f"{_OCI}.manifest.v1+json", f"{_DOCKER}.distribution.manifest.v2+json")
INDEXES = (f"{_OCI}.index.v1+json", f"{_DOCKER}.distribution.manifest.list.v2+json")
_CONFIGS = (f"{_OCI}.config.v1+json", f"{_DOCKER}.container.image.v1+json")
_SCHEMA_1 = re.compile(re.escape(_DOCKER) + r"\.distribution\.manifest\.v1\+(?:json|prettyjws)")
_LAYERS = {  # media type to compression
    f"{_OCI}.layer.v1.tar": "none",
    f"{_OCI}.layer.v1.tar+gzip": "gzip",
    f"{_OCI}.layer.v1.tar+zstd": "zstd",
    f"{_DOCKER}.image.rootfs.diff.tar.gzip": "gzip",
}
_ELSEWHERE = re.compile(r"\.(?:nondistributable|foreign)\.")
_ATTESTATION = "vnd.docker.reference.type"  # an annotation of what describes another manifest
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_GO_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}  # of processors in images
PLATFORM = ("linux", _GO_NAMES[ARCHITECTURE])


class ImageInvalid(Exception):
    """The image cannot be run. `str()` is one sentence for the person who made it."""


@dataclass(frozen=True)
class ContentDescriptor:
    """A blob of an image: its type, digest and size."""

    media_type: str
    digest: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """An image: its configuration and its layers, the lowest first."""

    config: ContentDescriptor
    layers: tuple[ContentDescriptor, ...]

    @property
    def size(self) -> int:
        """Return the sum of the sizes of all blobs."""
        return self.config.size + sum(layer.size for layer in self.layers)


@dataclass(frozen=True)
class ImageConfig:
    """The configuration of an image: its command, and the digests of its unpacked layers."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    user: str = ""
    working_directory: str = "/"
    diff_ids: tuple[str, ...] = ()


def read_manifest(body: bytes, media_type: str) -> Manifest | ContentDescriptor:
    """Return the manifest, or the entry of an index for this platform.

    Args:
        body: At most `MAX_MANIFEST_BYTES`.
        media_type: The type that the registry names. The document's own counts where it has one.

    Raises:
        ImageInvalid: It is neither, or of a kind that is not run.
    """
    document = _document(body, "manifest")
    if document.get("schemaVersion") == 1 or _SCHEMA_1.fullmatch(media_type):
        raise ImageInvalid("The image has the old format schema 1: build and push it again.")
    found = document.get("mediaType", media_type)
    if found in INDEXES:
        return _entry_of_platform(document)
    if found not in MANIFESTS:
        raise ImageInvalid(f"The document is no image: its type is {_quoted(found)}.")
    return _manifest(document)


def _entry_of_platform(document: dict[str, Any]) -> ContentDescriptor:
    """Return the first entry for this platform. An entry without a platform may be an index, or the only manifest."""
    platforms = []
    for entry in _list(document.get("manifests"), "manifests"):
        annotations, platform = entry.get("annotations"), entry.get("platform")
        if isinstance(annotations, dict) and _ATTESTATION in annotations:
            continue
        if platform is None:
            return _descriptor(entry)
        if not isinstance(platform, dict):
            raise ImageInvalid("The image's index is invalid: platform.")
        here = (platform.get("os"), platform.get("architecture"))
        if here == PLATFORM:
            return _descriptor(entry)
        platforms.append("/".join(map(str, here)))
    has = ", ".join(sorted(set(platforms)))
    raise ImageInvalid(f"The image is not for {'/'.join(PLATFORM)}. It has: {_quoted(has or 'no platform')}.")


def _manifest(document: dict[str, Any]) -> Manifest:
    config = _descriptor(document.get("config"))
    if config.media_type not in _CONFIGS:
        raise ImageInvalid(f"The document is no image: its configuration has the type {_quoted(config.media_type)}.")
    if config.size > MAX_MANIFEST_BYTES:
        raise ImageInvalid(f"The image's configuration has more than {MAX_MANIFEST_BYTES:,} bytes.")
    layers = tuple(map(_descriptor, _list(document.get("layers"), "layers")))
    if len(layers) > MAX_LAYERS:
        raise ImageInvalid(f"The image has {len(layers)} layers, and at most {MAX_LAYERS} are allowed.")
    for layer in layers:
        compression_of(layer)
    return Manifest(config, layers)


def compression_of(layer: ContentDescriptor) -> str:
    """Return how a layer is compressed: none, gzip or zstd. Raises ImageInvalid for an unknown type."""
    if _ELSEWHERE.search(layer.media_type):
        raise ImageInvalid("The image has a layer that may not be distributed, so the registry does not have it.")
    try:
        return _LAYERS[layer.media_type]
    except KeyError:
        raise ImageInvalid(f"The image has a layer of the unknown type {_quoted(layer.media_type)}.") from None


def read_config(body: bytes, layers: int) -> ImageConfig:
    """Return the configuration of an image with so many layers. Raises ImageInvalid."""
    document = _document(body, "configuration")
    here = (document.get("os"), document.get("architecture"))
    if here != PLATFORM:
        raise ImageInvalid(f"The image is for {_quoted('/'.join(map(str, here)))}, and not for {'/'.join(PLATFORM)}.")
    rootfs, config = document.get("rootfs"), document.get("config") or {}
    if not isinstance(rootfs, dict) or not isinstance(config, dict):
        raise ImageInvalid("The image's configuration is invalid: rootfs or config.")
    diff_ids = _words(rootfs.get("diff_ids"), "diff_ids")
    if len(diff_ids) != layers or not all(map(_DIGEST.fullmatch, diff_ids)):
        raise ImageInvalid("The image's configuration is invalid: diff_ids.")
    variables = (word.partition("=") for word in _words(config.get("Env"), "Env"))
    return ImageConfig(
        entrypoint=_words(config.get("Entrypoint"), "Entrypoint"),
        cmd=_words(config.get("Cmd"), "Cmd"),
        environment=tuple((name, value) for name, _, value in variables if name),
        user=_text(config.get("User") or "", "User"),
        working_directory=_text(config.get("WorkingDir") or "/", "WorkingDir"),
        diff_ids=diff_ids,
    )


def _document(body: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ImageInvalid(f"The image's {name} is not a JSON object.")
    return document


def _list(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ImageInvalid(f"The image's manifest is invalid: {name}.")
    return value


def _descriptor(value: Any) -> ContentDescriptor:
    members = value if isinstance(value, dict) else {}
    media_type, digest, size = members.get("mediaType"), members.get("digest"), members.get("size")
    if not isinstance(media_type, str) or not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ImageInvalid("The image's manifest is invalid: a descriptor lacks its type or size.")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ImageInvalid("The image's manifest is invalid: a descriptor has no digest of SHA-256 or SHA-512.")
    return ContentDescriptor(media_type, digest, size)


def _words(value: Any, name: str) -> tuple[str, ...]:
    found = [] if value is None else value
    if not isinstance(found, list) or len(found) > _MAX_WORDS:
        raise ImageInvalid(f"The image's configuration is invalid: {name}.")
    return tuple(_text(word, name) for word in found)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or "\0" in value or len(value) > _MAX_TEXT:
        raise ImageInvalid(f"The image's configuration is invalid: {name}.")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        raise ImageInvalid(f"The image's configuration is invalid: {name}.") from None
    return value


def _quoted(value: Any) -> str:
    return ascii(value)[:200]
