"""Files of jobs that the installation stores: artifacts and cache entries. The bytes are in `STORAGES["artifacts"]`."""

from typing import Final

from django.db import models
from django.db.models import Q

from runtime_jobs.identifiers import ID_LENGTH, new_artifact_id
from runtime_jobs.models.batches import Batch
from runtime_jobs.models.jobs import Job
from runtime_jobs.models.tenants import Organization, Project

MAX_ARTIFACT_NAME_LENGTH: Final = 1024
MAX_OBJECT_KEY_LENGTH: Final = 1024
MAX_OBJECT_BYTES: Final = 5 << 30  # the largest object that S3 accepts with one PUT
MAX_CACHE_KEY_LENGTH: Final = 512


class StoredObject(models.Model):
    """An object that a job announces and then uploads. It counts for the organization from the announcement on.

    Attributes:
        object_key: The key in the storage. The server has made it, so it is no path of a client.
        byte_count: The announced size. An object of another size never becomes complete.
        sha256: The digest of the content, if it passed through the server.
        upload_until: The end of the address for the upload.
        completed_at: When the whole object was received; None: it is not visible yet.
        is_abandoned: Whether the object never came, or is to be deleted. Its name is free again.
    """

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    object_key = models.CharField(max_length=MAX_OBJECT_KEY_LENGTH, unique=True)
    byte_count = models.BigIntegerField("size")
    sha256 = models.CharField(max_length=64, null=True)
    created_at = models.DateTimeField()
    upload_until = models.DateTimeField()
    completed_at = models.DateTimeField(null=True)
    is_abandoned = models.BooleanField(default=False)

    class Meta:
        abstract = True

    @property
    def is_in_pieces(self) -> bool:
        """Whether the worker sends the object in pieces and closes it itself."""
        return False


class StoredArtifact(StoredObject):
    """A file that a job keeps for people and other jobs.

    Attributes:
        job: The job that uploads it.
        batch: The batch whose jobs share the names of their artifacts: a workflow run. None: the names are the job's.
        received_bytes: The bytes that were received in pieces; 0 for an object that is sent whole.
    """

    artifact_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_artifact_id, editable=False)
    # Rows of artifacts outlive their job until housekeeping has deleted the object.
    job = models.ForeignKey(
        Job,
        to_field="job_ulid",
        db_column="job_ulid",
        on_delete=models.DO_NOTHING,
        related_name="stored_artifacts",
        db_constraint=False,
    )
    batch = models.ForeignKey(
        Batch, on_delete=models.DO_NOTHING, related_name="stored_artifacts", null=True, db_constraint=False
    )
    name = models.CharField(max_length=MAX_ARTIFACT_NAME_LENGTH)
    expires_at = models.DateTimeField("expires", null=True, help_text="Null: never.")
    received_bytes = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        db_table = "runtime_stored_artifacts"
        constraints = [
            models.UniqueConstraint(
                fields=["batch", "name"],
                condition=Q(batch__isnull=False, is_abandoned=False),
                name="one_artifact_per_batch_name",
            ),
            models.UniqueConstraint(
                fields=["job", "name"],
                condition=Q(batch__isnull=True, is_abandoned=False),
                name="one_artifact_per_job_name",
            ),
            models.CheckConstraint(condition=Q(byte_count__gte=0), name="artifact_size_is_not_negative"),
        ]
        indexes = [
            models.Index(fields=["upload_until"], condition=Q(completed_at=None), name="artifacts_by_upload"),
            models.Index(fields=["expires_at"], name="artifacts_by_expiry"),
            models.Index(models.F("organization"), models.F("id").desc(), name="artifacts_of_organization"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_in_pieces(self) -> bool:
        return self.received_bytes > 0


class CacheEntry(StoredObject):
    """Files that jobs of one project keep for later jobs. An entry never changes; another key is another entry.

    Attributes:
        scope: The ref of a pull request, whose jobs alone restore the entry; empty: all jobs of the project do.
        key: The key that the job names.
        version: A digest of the paths: files are restored only to the paths from which they came.
        last_used_at: When the entry was saved or restored. The least recently used entries are deleted first.
    """

    scope = models.CharField(max_length=255, blank=True)
    key = models.CharField(max_length=MAX_CACHE_KEY_LENGTH)
    version = models.CharField(max_length=64)
    last_used_at = models.DateTimeField()

    class Meta:
        db_table = "runtime_cache_entries"
        verbose_name_plural = "cache entries"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "scope", "version", "key"],
                condition=Q(is_abandoned=False),
                name="one_cache_entry_per_key",
            ),
            models.CheckConstraint(condition=Q(byte_count__gte=0), name="cache_size_is_not_negative"),
        ]
        indexes = [
            models.Index(fields=["upload_until"], condition=Q(completed_at=None), name="cache_entries_by_upload"),
            models.Index(fields=["last_used_at"], name="cache_entries_by_use"),
        ]

    def __str__(self) -> str:
        return self.key


class StorageUsage(models.Model):
    """The bytes of an organization: artifacts and cache entries, complete or announced, whose objects may exist."""

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, primary_key=True, related_name="+")
    byte_count = models.BigIntegerField(default=0)

    class Meta:
        db_table = "runtime_storage_usage"

    def __str__(self) -> str:
        return f"{self.byte_count} bytes"
