"""OpenAPI of the operations on artifacts and caches."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse

from orchestrator.http.api.openapi import operation_docs
from orchestrator.http.api.openapi_parts import path_parameter
from orchestrator.protocols.native.artifacts import serializers
from orchestrator.protocols.native.openapi import HEADER, PATH, request_example, response_example
from runtime_jobs.identifiers import ULID_PATTERN

LEASE_ID = OpenApiParameter("lease_id", str, PATH, required=True)
ARTIFACT_ID_PATTERN = f"art_{ULID_PATTERN}"
ARTIFACT_ID = path_parameter("artifact_id", ARTIFACT_ID_PATTERN)
OFFSET = OpenApiParameter(
    "offset",
    {"type": "integer", "minimum": 0, "maximum": 10**15 - 1},
    PATH,
    required=True,
    description="The position of the first byte of the piece.",
)
ADDRESS = OpenApiParameter(
    "address",
    {"type": "string", "pattern": r"^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$"},
    PATH,
    required=True,
    description="The end of a signed address.",
)
RANGE = OpenApiParameter("Range", str, HEADER, description="One range of bytes, such as `bytes=0-1023`.")
REPR_DIGEST = OpenApiParameter(
    "Repr-Digest",
    {"type": "string"},
    HEADER,
    response=[200, 206],
    description="SHA-256 of the whole object (RFC 9530). Absent if the object is in a bucket.",
)
_URL = "https://orchestrator.example/v1/objects/eyJhbGciOiJIUzI1NiJ9.eyJtZXRob2QiOiJQVVQifQ.c2lnbmF0dXJl"
_SHOWN: dict[str, Any] = {
    "artifact_id": "art_01kkygkagq0jk17bx6y1w8c3df",
    "job_id": "rtj_01kkygkagq0jk17bx6y1w8c3df",
    "batch_id": None,
    "name": "dist/report.html",
    "size_bytes": 1024,
    "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "created_at": "2026-03-17T20:00:00Z",
    "expires_at": "2026-06-15T20:00:00Z",
}
_KEY = {"key": "pnpm-linux-1f2e", "version": _SHOWN["sha256"]}
_UPLOAD = {"upload_url": _URL, "upload_until": "2026-03-17T20:15:00Z"}
_LEASE_CODES = ("stale_lease",)

LIST_ARTIFACTS = operation_docs(
    "list_artifacts",
    responses=serializers.StoredArtifactOutput(many=True),
    examples=[response_example("artifact of a job", _SHOWN)],
)
GET_ARTIFACT = operation_docs(
    "get_artifact",
    responses=serializers.ArtifactDownloadOutput,
    parameters=[ARTIFACT_ID],
    examples=[response_example("artifact of a job", _SHOWN | {"download_url": _URL})],
    codes=("not_found",),
)
BEGIN_ARTIFACT = operation_docs(
    "begin_artifact",
    request=serializers.NewArtifactInput,
    responses={201: serializers.UploadOutput},
    parameters=[LEASE_ID],
    examples=[
        request_example("a file of 1 KiB", {"name": "dist/report.html", "size_bytes": 1024}),
        response_example(
            "address of the upload",
            {name: _SHOWN[name] for name in ("artifact_id", "name", "size_bytes")} | _UPLOAD,
            "201",
        ),
    ],
    codes=(*_LEASE_CODES, "invalid_artifact_name", "conflict", "storage_quota_exceeded", "artifact_quota"),
)
PUT_PIECE = operation_docs(
    "put_artifact_piece",
    request={"application/octet-stream": OpenApiTypes.BINARY},
    responses=serializers.PieceOutput,
    parameters=[LEASE_ID, ARTIFACT_ID, OFFSET],
    examples=[
        response_example(
            "the first of two pieces",
            {"artifact_id": _SHOWN["artifact_id"], "size_bytes": 1048577, "received_bytes": 1048576},
        )
    ],
    codes=(
        *_LEASE_CODES,
        *("not_found", "conflict", "chunk_gap", "chunk_conflict", "size_mismatch", "unsupported_media_type"),
        *("storage_unavailable", "storage_full"),
    ),
)
CLOSE_ARTIFACT = operation_docs(
    "close_artifact",
    request=serializers.CloseArtifactInput,
    responses=serializers.StoredArtifactOutput,
    parameters=[LEASE_ID, ARTIFACT_ID],
    examples=[
        request_example("the digest of the content", {"sha256": _SHOWN["sha256"]}),
        response_example("artifact of a job", _SHOWN),
    ],
    codes=(
        *_LEASE_CODES,
        *("not_found", "conflict", "chunk_gap", "digest_mismatch", "storage_unavailable", "storage_full"),
    ),
)
RESTORE_CACHE = operation_docs(
    "restore_cache",
    request=serializers.RestoreCacheInput,
    responses=serializers.CacheDownloadOutput,
    parameters=[LEASE_ID],
    examples=[
        request_example("an entry, or a similar one", _KEY | {"restore_keys": ["pnpm-linux-"]}),
        response_example(
            "entry", {"key": _KEY["key"], "size_bytes": 1024, "sha256": _SHOWN["sha256"], "download_url": _URL}
        ),
    ],
    codes=_LEASE_CODES,
)
SAVE_CACHE = operation_docs(
    "save_cache",
    request=serializers.SaveCacheInput,
    responses={200: serializers.CacheUploadOutput, 201: serializers.CacheUploadOutput},
    parameters=[LEASE_ID],
    examples=[
        request_example("an entry of 1 KiB", _KEY | {"size_bytes": 1024}),
        response_example("address of the upload", _UPLOAD, "201"),
        response_example("the key is taken", {"upload_url": None, "upload_until": None}),
    ],
    codes=(*_LEASE_CODES, "storage_quota_exceeded"),
)
PUT_OBJECT = operation_docs(
    "put_object",
    request={"application/octet-stream": OpenApiTypes.BINARY},
    responses={200: OpenApiResponse(description="The object is complete; no content.")},
    parameters=[ADDRESS],
    codes=(
        *("address_not_valid", "not_found", "conflict", "size_mismatch"),
        *("length_required", "payload_too_large", "request_timeout", "storage_unavailable", "storage_full"),
    ),
)
GET_OBJECT = operation_docs(
    "get_object",
    responses={
        (200, "application/octet-stream"): OpenApiTypes.BINARY,
        (206, "application/octet-stream"): OpenApiTypes.BINARY,
    },
    parameters=[ADDRESS, RANGE, REPR_DIGEST],
    codes=("address_not_valid", "not_found", "range_not_satisfiable", "storage_unavailable"),
)
