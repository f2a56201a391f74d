"""Views of `/v2/{repository}/manifests/{reference}`, `…/tags/list` and `…/referrers/{digest}`."""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from django.http import HttpResponse
from django.utils.http import parse_header_parameters
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.images.digests import Digest
from orchestrator.images.errors import UNSUPPORTED, RegistryError
from orchestrator.images.manifest_documents import OCI_INDEX
from orchestrator.images.manifests import (
    Referrer,
    StoredManifest,
    delete_manifest,
    find_manifest,
    list_referrers,
    list_tags,
    push_manifest,
    require_tag,
    unknown_manifest,
)
from orchestrator.images.tokens import PULL, PUSH
from orchestrator.protocols.oci_registry.access import authorize
from orchestrator.protocols.oci_registry.base_view import RegistryView, empty_response, location, parse_digest
from orchestrator.protocols.oci_registry.body import manifest_body

MAX_TAGS: Final = 1000  # of one response; a Link leads to the next
MAX_TAG_HEADER: Final = 2048  # nginx answers 502 if all headers of a response have more than 4 KiB


class ManifestView(RegistryView):
    """`/v2/{repository}/manifests/{reference}`."""

    def get(self, request: Request, repository: str, reference: str) -> HttpResponse:
        """Read the manifest that a tag or digest names, as it was pushed."""
        found = find_manifest(authorize(request, repository, PULL).project, _existing(reference))
        try:
            return HttpResponse(found.read(), headers=_headers(found))
        except FileNotFoundError:  # deleted and collected since the row was read
            raise unknown_manifest(reference) from None

    def head(self, request: Request, repository: str, reference: str) -> HttpResponse:
        """Answer whether the repository has a manifest."""
        found = find_manifest(authorize(request, repository, PULL).project, _existing(reference))
        return HttpResponse(headers=_headers(found) | {"Content-Length": str(found.size)})

    def put(self, request: Request, repository: str, reference: str) -> HttpResponse:
        """Push a manifest by a tag, or by its digest with any number of tags (`tag`)."""
        found = authorize(request, repository, PUSH)
        named = _reference(reference)
        content_type, _ = parse_header_parameters(request.META.get("CONTENT_TYPE", ""))
        pushed = push_manifest(
            found.project,
            manifest_body(request._request),  # noqa: SLF001 - the bytes are kept as they are
            content_type,
            digest=named if isinstance(named, Digest) else None,
            tags=request.query_params.getlist("tag") if isinstance(named, Digest) else [named],
        )
        headers = {
            "Location": location(repository, "manifests", str(pushed.digest)),
            "Docker-Content-Digest": str(pushed.digest),
        }
        if pushed.subject is not None:
            headers["OCI-Subject"] = str(pushed.subject)
        if isinstance(named, Digest) and pushed.tags:
            headers["OCI-Tag"] = _tag_header(pushed.tags)
        return empty_response(201, headers)

    def delete(self, request: Request, repository: str, reference: str) -> HttpResponse:
        """Delete a tag, or a manifest with all its tags."""
        delete_manifest(authorize(request, repository, PUSH).project, _existing(reference))
        return empty_response(202)


class TagListView(RegistryView):
    """`/v2/{repository}/tags/list`."""

    def get(self, request: Request, repository: str) -> Response:
        """List the tags of the repository (`n`, `last`)."""
        found = authorize(request, repository, PULL)
        limit = _number(request, "n")
        page = MAX_TAGS if limit is None else min(limit, MAX_TAGS)
        after = request.query_params.get("last", "")
        tags = list_tags(found.project, after=after.replace("\0", ""), limit=page + 1)
        response = Response({"name": repository, "tags": tags[:page]})
        if page and len(tags) > page:
            query = urlencode({"n": page, "last": tags[page - 1]})
            response["Link"] = f'<{location(repository, "tags", "list")}?{query}>; rel="next"'
        return response


class ReferrerListView(RegistryView):
    """`/v2/{repository}/referrers/{digest}`."""

    def get(self, request: Request, repository: str, digest: str) -> HttpResponse:
        """List the manifests that name a manifest as their subject (`artifactType`)."""
        found = authorize(request, repository, PULL)
        subject = parse_digest(digest)
        artifact_type = request.query_params.get("artifactType") or None
        if artifact_type is not None and "\0" in artifact_type:
            raise RegistryError(400, UNSUPPORTED, "artifactType: Must not have control characters.")
        after = _number(request, "after") or 0
        page, has_more = list_referrers(found.project, subject, artifact_type=artifact_type, after=after)
        document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [_descriptor(entry) for entry in page]}
        response = HttpResponse(orjson.dumps(document), content_type=OCI_INDEX)
        query: dict[str, Any] = {}
        if artifact_type is not None:
            response["OCI-Filters-Applied"] = "artifactType"
            query["artifactType"] = artifact_type
        if has_more:
            query["after"] = page[-1].id
            response["Link"] = f'<{location(repository, "referrers", str(subject))}?{urlencode(query)}>; rel="next"'
        return response


def _reference(text: str) -> Digest | str:
    """Return the digest or tag in a path. No tag has a colon.

    Raises:
        RegistryError: 400 DIGEST_INVALID or MANIFEST_INVALID.
    """
    return parse_digest(text) if ":" in text else require_tag(text)


def _existing(text: str) -> Digest | str:
    """Return the digest or tag of a manifest that must exist. A malformed one names none: 404, as clients expect."""
    try:
        return _reference(text)
    except RegistryError:
        raise unknown_manifest(text) from None


def _headers(manifest: StoredManifest) -> dict[str, str]:
    return {
        "Content-Disposition": "attachment",
        "Content-Type": manifest.media_type,
        "Docker-Content-Digest": manifest.digest,
        "ETag": f'"{manifest.digest}"',
    }


def _descriptor(referrer: Referrer) -> dict[str, Any]:
    document: dict[str, Any] = {
        "mediaType": referrer.media_type,
        "digest": referrer.digest,
        "size": referrer.size,
    }
    if referrer.artifact_type:
        document["artifactType"] = referrer.artifact_type
    if referrer.annotations is not None:
        document["annotations"] = orjson.Fragment(referrer.annotations)
    return document


def _tag_header(tags: Sequence[str]) -> str:
    """Return the tags that fit into a header. A client pushes those that it does not find there by themselves."""
    header = ""
    for tag in tags:
        longer = f"{header}, {tag}" if header else tag
        if len(longer) > MAX_TAG_HEADER:
            break
        header = longer
    return header


def _number(request: Request, name: str) -> int | None:
    """Return a whole number of the query, or None without it.

    Raises:
        RegistryError: 400 UNSUPPORTED.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise RegistryError(400, UNSUPPORTED, f"{name}: Must be a whole number.")
    return int(text)
