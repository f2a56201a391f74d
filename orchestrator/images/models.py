"""Models of the image registry.

A blob is stored once for all repositories. A repository is that of a project; it sees a blob only by a row of its own
(`RepositoryBlob`). A row of a blob is created after its file is complete, verified and on the disk.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from orchestrator.images.digests import MAX_DIGEST_LENGTH
from runtime_jobs.identifiers import new_uuid
from runtime_jobs.models import Organization, Project

MAX_FILE_NAME = 255
MAX_MEDIA_TYPE = 255
MAX_TAG_LENGTH = 128


class ImageBlob(models.Model):
    """A verified content in the store: a layer, a config or a manifest.

    Attributes:
        file: Its name in `STORAGES["images"]`. Each row has a file of its own, which no other row ever had.
        used_at: When the content was last uploaded or mounted. Collection spares recent blobs.
    """

    digest = models.CharField(max_length=MAX_DIGEST_LENGTH, unique=True)
    size = models.BigIntegerField()
    file = models.CharField(max_length=MAX_FILE_NAME)
    used_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "image_blobs"
        indexes = [models.Index(fields=["file"], name="image_blobs_by_file")]

    def __str__(self) -> str:
        return self.digest


class RepositoryBlob(models.Model):
    """A blob that the repository of a project has."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    blob = models.ForeignKey(ImageBlob, on_delete=models.RESTRICT, related_name="repositories")
    used_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "image_repository_blobs"
        constraints = [models.UniqueConstraint(fields=["project", "blob"], name="one_blob_per_repository")]

    def __str__(self) -> str:
        return f"{self.blob_id} of {self.project_id}"


class ImageManifest(models.Model):
    """A manifest or index in the repository of a project.

    Attributes:
        blob: Its bytes.
        subject: The digest of the manifest to which it refers as its subject, or empty.
        annotations: The annotations of a manifest with a subject as JSON, in bytes: PostgreSQL's text cannot hold NUL.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    digest = models.CharField(max_length=MAX_DIGEST_LENGTH)
    blob = models.ForeignKey(ImageBlob, on_delete=models.RESTRICT, related_name="manifests")
    media_type = models.CharField(max_length=MAX_MEDIA_TYPE)
    artifact_type = models.CharField(max_length=MAX_MEDIA_TYPE, blank=True)
    subject = models.CharField(max_length=MAX_DIGEST_LENGTH, blank=True)
    annotations = models.BinaryField(null=True)
    pushed_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "image_manifests"
        constraints = [models.UniqueConstraint(fields=["project", "digest"], name="one_manifest_per_digest")]
        indexes = [
            models.Index(fields=["project", "subject", "id"], name="image_referrers", condition=~models.Q(subject=""))
        ]

    def __str__(self) -> str:
        return self.digest


class ManifestBlob(models.Model):
    """A blob of the repository that a manifest names as its config or layer. It cannot be deleted meanwhile."""

    manifest = models.ForeignKey(ImageManifest, on_delete=models.CASCADE, related_name="blobs", db_index=False)
    repository_blob = models.ForeignKey(RepositoryBlob, on_delete=models.RESTRICT, related_name="manifests")

    class Meta:
        db_table = "image_manifest_blobs"
        constraints = [
            models.UniqueConstraint(fields=["manifest", "repository_blob"], name="one_reference_per_manifest")
        ]

    def __str__(self) -> str:
        return f"{self.repository_blob_id} in {self.manifest_id}"


class ImageTag(models.Model):
    """A name of a manifest in the repository of a project. Tags sort by their bytes."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    name = models.CharField(max_length=MAX_TAG_LENGTH, db_collation="C")
    manifest = models.ForeignKey(ImageManifest, on_delete=models.CASCADE, related_name="tags")
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "image_tags"
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="one_tag_per_name")]

    def __str__(self) -> str:
        return self.name


class BlobUpload(models.Model):
    """An upload that has begun. Its parts are invisible until their digest is verified.

    Attributes:
        parts: Names of files in `STORAGES["images"]`, in the order of their bytes. A file that no row names counts for
            nothing, and collection deletes it.
        size: Bytes in all parts.
        is_completing: One request verifies the content and accepts no further part.
    """

    uuid = models.UUIDField(default=new_uuid, unique=True, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    parts = ArrayField(models.CharField(max_length=MAX_FILE_NAME), default=list)
    size = models.BigIntegerField(default=0)
    is_completing = models.BooleanField(default=False)
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "image_uploads"

    def __str__(self) -> str:
        return str(self.uuid)


class ImageUsage(models.Model):
    """The bytes in the registry that an organization has added since they were summed up, with the sum: see `quotas`.

    The number may be too high, and is never too low. A row that is deleted is made anew at the next push.
    """

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, primary_key=True, related_name="+")
    bytes = models.BigIntegerField()

    class Meta:
        db_table = "image_usage"

    def __str__(self) -> str:
        return f"{self.bytes} bytes of {self.organization_id}"
