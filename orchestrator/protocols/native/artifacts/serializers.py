"""Requests and responses of artifacts and caches. `wire.py` builds the responses; their classes are schema only."""

from rest_framework import serializers

from orchestrator.http.api.fields import StrictCharField, StrictIntegerField, StrictSerializer
from runtime_jobs.control_characters import wrong_label
from runtime_jobs.models.artifacts import MAX_ARTIFACT_NAME_LENGTH, MAX_CACHE_KEY_LENGTH, MAX_OBJECT_BYTES

MAX_RESTORE_KEYS = 10
DIGEST = "[0-9a-f]{64}"


class NewArtifactInput(StrictSerializer):
    """POST /v1/runtime/leases/{lease_id}/artifacts."""

    name = StrictCharField(
        allow_blank=True,
        help_text=f"A relative path of at most {MAX_ARTIFACT_NAME_LENGTH} bytes, unique for the job.",
    )
    size_bytes = StrictIntegerField(min_value=0, max_value=MAX_OBJECT_BYTES)


class CloseArtifactInput(StrictSerializer):
    """POST /v1/runtime/leases/{lease_id}/artifacts/{artifact_id}/close."""

    sha256 = StrictCharField(pattern=DIGEST, help_text="The digest of the whole content.")


class PieceOutput(serializers.Serializer):
    """An artifact of which a piece was stored."""

    artifact_id = serializers.CharField()
    size_bytes = serializers.IntegerField()
    received_bytes = serializers.IntegerField(help_text="The offset of the next piece.")


class CacheKeyInput(StrictSerializer):
    """The name of a cache entry."""

    key = StrictCharField(max_length=MAX_CACHE_KEY_LENGTH, check=wrong_label)
    version = StrictCharField(
        pattern=DIGEST, help_text="SHA-256 of what the files are restored to. Entries of other versions do not exist."
    )


class RestoreCacheInput(CacheKeyInput):
    """POST /v1/runtime/leases/{lease_id}/caches/restore."""

    restore_keys = serializers.ListField(
        child=StrictCharField(max_length=MAX_CACHE_KEY_LENGTH, check=wrong_label),
        required=False,
        default=list,
        max_length=MAX_RESTORE_KEYS,
        help_text="Beginnings of keys of other entries, in the order of preference. The newest one is restored.",
    )


class SaveCacheInput(CacheKeyInput):
    """POST /v1/runtime/leases/{lease_id}/caches/save."""

    size_bytes = StrictIntegerField(min_value=0, max_value=MAX_OBJECT_BYTES)


class UploadOutput(serializers.Serializer):
    """An announced artifact."""

    artifact_id = serializers.CharField()
    name = serializers.CharField()
    size_bytes = serializers.IntegerField()
    upload_url = serializers.CharField(help_text="PUT the whole content here.")
    upload_until = serializers.DateTimeField()


class CacheUploadOutput(serializers.Serializer):
    """The address of a new cache entry."""

    upload_url = serializers.CharField(allow_null=True, help_text="Null: there is an entry of this key.")
    upload_until = serializers.DateTimeField(allow_null=True)


class CacheDownloadOutput(serializers.Serializer):
    """A cache entry."""

    key = serializers.CharField(allow_null=True, help_text="Null: there is no entry.")
    size_bytes = serializers.IntegerField(allow_null=True)
    sha256 = serializers.CharField(allow_null=True, help_text="Null also if the object is in a bucket.")
    download_url = serializers.CharField(allow_null=True)


class StoredArtifactOutput(serializers.Serializer):
    """A complete artifact."""

    artifact_id = serializers.CharField()
    job_id = serializers.CharField()
    batch_id = serializers.CharField(allow_null=True)
    name = serializers.CharField()
    size_bytes = serializers.IntegerField()
    sha256 = serializers.CharField(allow_null=True, help_text="Null if the object is in a bucket.")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)


class ArtifactDownloadOutput(StoredArtifactOutput):
    """A complete artifact with an address of its content."""

    download_url = serializers.CharField(help_text="Valid for 15 minutes. One range may be requested.")
