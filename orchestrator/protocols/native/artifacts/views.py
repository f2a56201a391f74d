"""Views of artifacts, caches, and the signed addresses of their content."""

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import django_filters
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.http import content_disposition_header
from rest_framework.parsers import BaseParser
from rest_framework.permissions import AllowAny
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from leases.errors import StaleLease
from orchestrator.artifacts import piece_operations
from orchestrator.artifacts.addresses import MODELS
from orchestrator.artifacts.operations import begin_cache_entry, find_cache_entry
from orchestrator.artifacts.pieces import MAX_PIECE_BYTES, close_artifact, store_piece
from orchestrator.artifacts.storage import OCTETS, artifact_storage
from orchestrator.artifacts.uploads import store_upload, with_confirmed
from orchestrator.http.api.fields import parse
from orchestrator.http.api.json_parser import body_of, require_uncompressed
from orchestrator.http.api.query_parameters import StrictQueryMixin
from orchestrator.http.asgi.body_limit import too_large
from orchestrator.http.auth.permissions import HasScope
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.ranged_response import RangeNotSatisfiable, ranged_response
from orchestrator.protocols.native.artifacts import openapi, serializers, wire
from orchestrator.protocols.native.artifacts.receiver import ADDRESS, address_of, received_part, refuse_write
from orchestrator.protocols.native.base_view import OrganizationViewSet
from orchestrator.protocols.native.leases.views import WorkerViewSet
from runtime_jobs.errors import NotFound
from runtime_jobs.identifiers import is_id
from runtime_jobs.models import StoredArtifact
from runtime_jobs.models.tenants import Scope

EMPTY_PIECE = "A piece has at least one byte, as application/octet-stream."
GONE = "The object does not exist, or has expired."


class ArtifactFilters(django_filters.FilterSet):
    """Filters of `GET /v1/artifacts`."""

    org_slug = django_filters.CharFilter(field_name="organization__slug")
    job_id = django_filters.CharFilter(field_name="job_id")
    batch_id = django_filters.CharFilter(field_name="batch__batch_ulid")
    name = django_filters.CharFilter()


class ArtifactViewSet(OrganizationViewSet):
    """Complete artifacts of the organizations that the caller may see."""

    lookup_field = "artifact_ulid"
    lookup_url_kwarg = "artifact_id"
    lookup_value_regex = openapi.ARTIFACT_ID_PATTERN
    http_method_names = ["get", "head"]
    filterset_class = ArtifactFilters

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.JOBS_READ)]

    def all_rows(self) -> QuerySet[StoredArtifact]:
        unexpired = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
        return StoredArtifact.objects.select_related("batch").filter(unexpired, is_abandoned=False)

    @openapi.LIST_ARTIFACTS
    def list(self, request: Request) -> Response:
        """List complete artifacts, newest first."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        return self.get_paginated_response([wire.serialize_artifact(row) for row in with_confirmed(page or [])])

    @openapi.GET_ARTIFACT
    def retrieve(self, request: Request, artifact_id: str) -> Response:
        """Return one artifact with an address of its content."""
        found = with_confirmed([self.get_object()])
        if not found:
            raise NotFound(GONE)
        return Response(wire.serialize_download(found[0], timezone.now()))


class LeaseObjectViewSet(WorkerViewSet):
    """Artifacts and caches of the job of a lease."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse a malformed lease id like an unknown one, before any look-up."""
        super().initial(request, *args, **kwargs)
        if not is_id(kwargs["lease_id"], "rtl"):
            raise StaleLease("unknown_lease")

    @openapi.BEGIN_ARTIFACT
    def begin_artifact(self, request: Request, lease_id: str) -> Response:
        """Announce an artifact. It becomes visible when its whole content was sent to `upload_url`."""
        validated = parse(serializers.NewArtifactInput, body_of(request))
        artifact = piece_operations.begin_lease_artifact(lease_ulid=lease_id, worker=self.worker, **validated)
        return Response(wire.serialize_upload(artifact), status=201)

    @openapi.CLOSE_ARTIFACT
    def close_artifact(self, request: Request, lease_id: str, artifact_id: str) -> Response:
        """Join the pieces of an artifact. With another digest all bytes are deleted, and the name is free again."""
        validated = parse(serializers.CloseArtifactInput, body_of(request))
        with _storage_refusals():
            artifact = close_artifact(
                lease_ulid=lease_id, worker=self.worker, artifact_ulid=artifact_id, sha256=validated["sha256"]
            )
        return Response(wire.serialize_artifact(artifact))

    @openapi.RESTORE_CACHE
    def restore_cache(self, request: Request, lease_id: str) -> Response:
        """Find the cache entry that the job restores. A job must succeed without one."""
        validated = parse(serializers.RestoreCacheInput, body_of(request))
        entry = find_cache_entry(lease_ulid=lease_id, worker=self.worker, **validated)
        return Response(wire.serialize_cache_download(entry, timezone.now()))

    @openapi.SAVE_CACHE
    def save_cache(self, request: Request, lease_id: str) -> Response:
        """Announce a cache entry. An entry never changes: with a key that is taken there is no address."""
        validated = parse(serializers.SaveCacheInput, body_of(request))
        entry = begin_cache_entry(lease_ulid=lease_id, worker=self.worker, **validated)
        return Response(wire.serialize_cache_upload(entry), status=201 if entry else 200)


class OctetParser(BaseParser):
    """Bytes, up to the limit of all bodies of the path."""

    media_type = OCTETS

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        require_uncompressed((parser_context or {})["request"])
        raw = stream.read(MAX_PIECE_BYTES + 1)
        if len(raw) > MAX_PIECE_BYTES:
            raise too_large(MAX_PIECE_BYTES)
        return raw


class ArtifactPieceViewSet(LeaseObjectViewSet):
    """Pieces of the artifacts of a lease."""

    http_method_names = ["put"]
    parser_classes = [OctetParser]

    @openapi.PUT_PIECE
    def put_piece(self, request: Request, lease_id: str, artifact_id: str, offset: str) -> Response:
        """Append a piece of at most 1 MiB at its offset. Sending the same piece again has no effect."""
        piece = request.data if isinstance(request.data, bytes) else b""  # without a body: an empty form
        if not piece:
            raise ApiError(400, "invalid", EMPTY_PIECE, errors={"body": [EMPTY_PIECE]})
        with _storage_refusals():
            artifact = store_piece(
                lease_ulid=lease_id, worker=self.worker, artifact_ulid=artifact_id, offset=int(offset), piece=piece
            )
        return Response(wire.serialize_received(artifact))


@contextmanager
def _storage_refusals() -> Iterator[None]:
    """Answer the errors of the storage as uploads to signed addresses do: 507 or 503."""
    try:
        yield
    except OSError as error:
        raise refuse_write(error) from error


class OctetRenderer(BaseRenderer):
    """Declares that a view answers with bytes, whatever `Accept` names. The view builds the response."""

    media_type = "*/*"
    format = "bin"

    def render(self, data: Any, *_: Any, **__: Any) -> bytes:
        return bytes(data or b"")


class ObjectView(StrictQueryMixin, APIView):
    """The content of one object. The address is the permission: no token is read."""

    authentication_classes: list[Any] = []
    permission_classes = [AllowAny]
    parser_classes: list[Any] = []
    renderer_classes = [OctetRenderer]

    @openapi.PUT_OBJECT
    def put(self, request: Request, address: str) -> HttpResponse:
        """Upload an object. It is stored whole or not at all; a repetition with the same content is accepted."""
        original: HttpRequest = request._request  # noqa: SLF001 the body is not parsed
        found = getattr(original, "scope", {}).get(ADDRESS) or address_of("PUT", original.path)
        with received_part(original, found) as part:
            try:
                row = store_upload(found, part)
            except OSError as error:
                raise refuse_write(error) from error
        return HttpResponse(headers={"ETag": f'"{row.sha256}"', "Content-Type": OCTETS})

    @openapi.GET_OBJECT
    def get(self, request: Request, address: str) -> HttpResponseBase:
        """Download an object, or one range of it."""
        return _download(request._request)  # noqa: SLF001 distinguishes ASGI and WSGI

    @openapi.GET_OBJECT
    def head(self, request: Request, address: str) -> HttpResponseBase:
        """Return the headers of a download."""
        return _download(request._request)  # noqa: SLF001 as above


def _download(request: HttpRequest) -> HttpResponseBase:
    found = address_of(request.method or "GET", request.path)
    rows = MODELS[found.kind]._default_manager.filter(pk=found.row_id)  # noqa: SLF001 Django's name
    row = rows.filter(is_abandoned=False, completed_at__isnull=False).first()
    storage = artifact_storage()
    try:
        if row is None or storage.size_of(row.object_key) != row.byte_count:
            raise NotFound(GONE)
    except OSError as error:
        raise refuse_write(error) from error

    def read_block(position: int, size: int) -> bytes:
        return storage.read(found.object_key, position, size)

    name = content_disposition_header(as_attachment=True, filename=found.file_name or "file")
    headers = {"Content-Disposition": name or "attachment", "X-Content-Type-Options": "nosniff"}
    if row.sha256:
        headers["Repr-Digest"] = f"sha-256=:{base64.b64encode(bytes.fromhex(row.sha256)).decode()}:"
    etag = f'"{row.sha256}"' if row.sha256 else f'"{row.pk}"'
    try:
        return ranged_response(request, read_block, size=row.byte_count, etag=etag, headers=headers)
    except RangeNotSatisfiable:
        headers = {"Content-Range": f"bytes */{row.byte_count}"}
        detail = f"The object has {row.byte_count} bytes. Request a range within them."
        raise ApiError(416, "range_not_satisfiable", detail, headers=headers) from None
