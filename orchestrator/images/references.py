"""References to images: `[registry/]repository[:tag][@digest]`, as Docker reads them."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings

from orchestrator.images.manifests import find_tag
from runtime_jobs.models import Project
from runtime_jobs.specs.oci import IMAGE_DIGEST

DOCKER_HUB: Final = "docker.io"  # the registry of a reference that names none
DEFAULT_TAG: Final = "latest"
MAX_REFERENCE_LENGTH: Final = 512
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_OFFICIAL: Final = "library/"  # the namespace that Docker adds to a name without one
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class InvalidReference(ValueError):
    """The text is no reference to an image of this server's registry. The message is for the caller."""


@dataclass(frozen=True)
class ImageReference:
    """A reference to an image.

    Attributes:
        registry: The host of the registry, with its port if the reference has one.
        repository: The path of the repository, without `library/` of Docker Hub.
        tag: The tag, or None for a reference by digest alone.
        digest: The digest of the manifest, or None.
        text: The reference as it was submitted.
    """

    registry: str
    repository: str
    tag: str | None
    digest: str | None
    text: str

    @classmethod
    def of_digest(cls, digest: str) -> "ImageReference":
        """Return the reference to an image of a repository that something else names."""
        return cls(DOCKER_HUB, "", None, digest, digest)

    @property
    def project(self) -> str | None:
        """The UUID or slug of the project that the repository names, or None for a path of several segments."""
        return None if "/" in self.repository else self.repository or None


def parse_reference(text: str) -> ImageReference:
    """Parse a reference to an image.

    The first part of a path is a registry if it has a dot or a port, or is `localhost`. Otherwise the registry is
    Docker Hub.

    Raises:
        InvalidReference: The text is no reference.
    """
    if not 0 < len(text) <= MAX_REFERENCE_LENGTH:
        raise InvalidReference(f"A reference of 1 to {MAX_REFERENCE_LENGTH} characters is needed.")
    name, has_digest, digest = text.partition("@")
    if has_digest and not IMAGE_DIGEST.fullmatch(digest):
        raise InvalidReference("The digest must be sha256: and 64, or sha512: and 128 lower-case hex digits.")
    registry, path = _split_registry(name)
    repository, has_tag, tag = path.partition(":")
    if registry == DOCKER_HUB and repository.count("/") == 1:
        repository = repository.removeprefix(_OFFICIAL)
    if not _REPOSITORY.fullmatch(repository):
        raise InvalidReference("The repository has lower-case letters, digits, '.', '_', '-' and '/' only.")
    if has_tag and not _TAG.fullmatch(tag):
        raise InvalidReference("The tag has 1 to 128 letters, digits, '.', '_' and '-'.")
    if not has_tag and not has_digest:
        tag = DEFAULT_TAG
    return ImageReference(registry, repository, tag or None, digest or None, text)


def _split_registry(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    if not slash or not (first == "localhost" or set(first) & set(".:")):
        return DOCKER_HUB, name
    if not _AUTHORITY.fullmatch(first):
        raise InvalidReference("The registry must be a host name or address, with or without a port.")
    registry = first.lower()
    return (DOCKER_HUB if registry == f"index.{DOCKER_HUB}" else registry), rest


def registry_url() -> str:
    """Return the URL of this server's registry, as runners receive it."""
    return f"{settings.PUBLIC_URL}/"


def is_own_registry(registry: str) -> bool:
    """Report whether a reference with this registry names an image of this server.

    Docker Hub counts: it is the registry of a reference that names none. No other registry is ever asked.
    """
    parts = urlsplit(settings.PUBLIC_URL)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    return registry in {DOCKER_HUB, host, f"{host}:{port}"}


def resolve_digest(project: Project, reference: ImageReference) -> str:
    """Return the digest of the manifest that a reference names.

    Args:
        project: The project in whose repository a tag is looked up.
        reference: The reference. A digest in it is used as it is.

    Raises:
        InvalidReference: The reference names another registry or repository, or the tag does not exist.
    """
    if not is_own_registry(reference.registry):
        own = urlsplit(settings.PUBLIC_URL).netloc
        raise InvalidReference(f"The registry {reference.registry} is not supported. Push the image to {own}.")
    if reference.digest is not None:
        return reference.digest
    if reference.repository not in {project.public_slug, str(project.uuid)}:
        message = f"The repository {reference.repository} is not that of the project {project.public_slug}."
        raise InvalidReference(f"{message} Name the image by its digest, or push it to the project.")
    return resolve_tag(project, reference.tag or DEFAULT_TAG)


def resolve_tag(project: Project, tag: str) -> str:
    """Return the digest of a tag in the repository of a project.

    Raises:
        InvalidReference: The tag does not exist.
    """
    digest = find_tag(project, tag)
    if digest is None:
        message = f"The repository of the project {project.public_slug} has no tag {tag}."
        raise InvalidReference(f"{message} Push the image, or name it by its digest (@sha256:…).")
    return digest
