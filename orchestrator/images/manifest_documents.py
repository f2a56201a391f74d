"""Parses manifests and indexes, and refuses what clients could understand in two ways."""

from dataclasses import dataclass
from typing import Any, Final

import orjson

from orchestrator.images.digests import Digest, InvalidDigest
from orchestrator.images.errors import INVALID_MANIFEST, RegistryError
from orchestrator.images.models import MAX_MEDIA_TYPE
from runtime_jobs.control_characters import wrong_label

OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST_TYPES: Final = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})
INDEX_TYPES: Final = frozenset({OCI_INDEX, DOCKER_LIST})
MEDIA_TYPES: Final = MANIFEST_TYPES | INDEX_TYPES
MAX_MANIFEST_BYTES: Final = 10_000_000
MAX_CONFIG_BYTES: Final = 10_000_000  # a runner reads no larger one
MAX_DESCRIPTORS: Final = 10_000
MAX_COMMAS: Final = 500_000  # bounds the memory of the parsed document
MAX_ANNOTATION_BYTES: Final = 256 << 10  # of a manifest with a subject: lists of referrers contain them
_FOREIGN_LAYERS: Final = ("nondistributable", "foreign")  # in media types of layers that no registry has to store


@dataclass(frozen=True)
class BlobReference:
    """A content that a manifest names.

    Attributes:
        digest: Its digest.
        size: The bytes that it must have.
    """

    digest: Digest
    size: int


@dataclass(frozen=True)
class ManifestDocument:
    """A manifest or index that is well-formed.

    Attributes:
        media_type: One of `MEDIA_TYPES`.
        config: The config of a manifest, or None for an index.
        layers: The layers that the repository must have.
        manifests: The manifests of an index.
        artifact_type: The type that lists of referrers display, or empty.
        subject: The manifest to which this one refers, or None.
        annotations: JSON of the annotations, if there is a subject.
    """

    media_type: str
    config: BlobReference | None
    layers: tuple[BlobReference, ...]
    manifests: tuple[Digest, ...]
    artifact_type: str
    subject: Digest | None
    annotations: bytes | None


def parse_manifest(content: bytes, content_type: str) -> ManifestDocument:
    """Parse the body of a manifest.

    Args:
        content: The bytes.
        content_type: The header of the request without parameters, or empty.

    Raises:
        RegistryError: 400 MANIFEST_INVALID, or 413 SIZE_INVALID.
    """
    if len(content) > MAX_MANIFEST_BYTES:
        raise too_large()
    document = _load(content)
    media_type = _media_type(document, content_type)
    if document.get("schemaVersion") != 2:
        raise invalid("schemaVersion: Must be 2.")
    # A document with both members is an image for some clients and an index for others.
    config: BlobReference | None = None
    layers: tuple[BlobReference, ...] = ()
    manifests: tuple[Digest, ...] = ()
    if media_type in INDEX_TYPES:
        if document.keys() & {"config", "layers"}:
            raise invalid("An index must not have `config` or `layers`.")
        manifests = _manifests(document)
    else:
        if "manifests" in document:
            raise invalid("A manifest must not have `manifests`.")
        config, layers = _config(document), _layers(document)
        _require_one_size(config, *layers)
    subject = _subject(document)
    return ManifestDocument(
        media_type,
        config,
        layers,
        manifests,
        _artifact_type(document),
        subject,
        None if subject is None else _annotations(document),
    )


def _load(content: bytes) -> dict[str, Any]:
    if content.count(b",") > MAX_COMMAS:
        raise invalid(f"The manifest has more than {MAX_COMMAS} commas.")
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise invalid("The manifest is no JSON document.") from None
    if not isinstance(document, dict):
        raise invalid("The manifest must be a JSON object.")
    return document


def _media_type(document: dict[str, Any], content_type: str) -> str:
    declared = document.get("mediaType") or ""
    if declared and content_type and declared != content_type:
        raise invalid("mediaType: Must be the Content-Type of the request.")
    media_type = content_type or declared
    if not isinstance(media_type, str) or media_type not in MEDIA_TYPES:
        raise invalid(f"The media type must be one of {', '.join(sorted(MEDIA_TYPES))}.")
    return media_type


def _config(document: dict[str, Any]) -> BlobReference:
    config = _reference(document.get("config"), "config")
    if config.size > MAX_CONFIG_BYTES:
        raise invalid(f"config: May have at most {MAX_CONFIG_BYTES} bytes.")
    return config


def _layers(document: dict[str, Any]) -> tuple[BlobReference, ...]:
    entries = _list(document, "layers")
    found = [(entry, _reference(entry, f"layers[{number}]")) for number, entry in enumerate(entries)]
    return tuple(reference for entry, reference in found if not _is_foreign(entry))


def _require_one_size(*references: BlobReference) -> None:
    sizes = {str(reference.digest): reference.size for reference in references}
    for reference in references:
        if sizes[str(reference.digest)] != reference.size:
            raise invalid(f"{reference.digest}: The manifest names it with two sizes.")


def _manifests(document: dict[str, Any]) -> tuple[Digest, ...]:
    entries = _list(document, "manifests")
    return tuple(_reference(entry, f"manifests[{number}]").digest for number, entry in enumerate(entries))


def _list(document: dict[str, Any], name: str) -> list[Any]:
    entries = document.get(name)
    if not isinstance(entries, list):
        raise invalid(f"{name}: Must be a list.")
    if len(entries) > MAX_DESCRIPTORS:
        raise invalid(f"{name}: May have at most {MAX_DESCRIPTORS} entries.")
    return entries


def _is_foreign(layer: dict[str, Any]) -> bool:
    media_type = layer.get("mediaType")
    return isinstance(media_type, str) and any(part in media_type for part in _FOREIGN_LAYERS)


def _reference(entry: Any, name: str) -> BlobReference:
    if not isinstance(entry, dict):
        raise invalid(f"{name}: Must be a descriptor.")
    digest, size = entry.get("digest"), entry.get("size")
    if type(size) is not int or not 0 <= size < 2**63:
        raise invalid(f"{name}.size: Must be a whole number of bytes.")
    return BlobReference(_digest(digest, f"{name}.digest"), size)


def _digest(value: Any, name: str) -> Digest:
    if not isinstance(value, str):
        raise invalid(f"{name}: Must be a digest.")
    try:
        return Digest.parse(value)
    except InvalidDigest as error:
        raise invalid(f"{name}: {error}") from None


def _subject(document: dict[str, Any]) -> Digest | None:
    subject = document.get("subject")
    return None if subject is None else _reference(subject, "subject").digest


def _artifact_type(document: dict[str, Any]) -> str:
    """Return the type of the artifact: of the manifest itself, else of its config. An index has only the former."""
    own = document.get("artifactType") or ""
    config = document.get("config")
    found = own or (config.get("mediaType") or "" if isinstance(config, dict) else "")
    if not isinstance(found, str) or len(found) > MAX_MEDIA_TYPE or wrong_label(found):
        raise invalid(f"artifactType: Must be a text of at most {MAX_MEDIA_TYPE} printable characters.")
    return found


def _annotations(document: dict[str, Any]) -> bytes | None:
    annotations = document.get("annotations")
    if annotations is None:
        return None
    if not isinstance(annotations, dict):
        raise invalid("annotations: Must be an object.")
    if not all(isinstance(value, str) for value in annotations.values()):
        raise invalid("annotations: Each value must be a text.")  # a nested one may be too deep to be encoded
    encoded = orjson.dumps(annotations)
    if len(encoded) > MAX_ANNOTATION_BYTES:
        raise invalid(f"annotations: With a subject they may have at most {MAX_ANNOTATION_BYTES} bytes.")
    return encoded


def invalid(message: str) -> RegistryError:
    """Return the refusal of a manifest."""
    return RegistryError(400, INVALID_MANIFEST, message)


def too_large() -> RegistryError:
    """Return the refusal of a manifest above the limit."""
    return RegistryError(413, INVALID_MANIFEST, f"A manifest may have at most {MAX_MANIFEST_BYTES} bytes.")
