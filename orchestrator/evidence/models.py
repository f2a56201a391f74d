"""The public halves of the keys that sign evidence, and the audit bundles that were written."""

from django.db import models

from runtime_jobs.identifiers import ID_LENGTH


class SigningKey(models.Model):
    """A key that signs, or has signed. The private half is a file, or the setting SIGNING_KEY; never in the database.

    Attributes:
        key_id: Computed from the key (`evidence.public_keys`), 64 hex digits.
        public_pem: The public key. It stays published for ever: signatures do not expire.
        retired_at: Since then the key signs nothing.
    """

    key_id = models.CharField(max_length=64, unique=True)
    public_pem = models.TextField()
    created_at = models.DateTimeField()
    retired_at = models.DateTimeField(null=True)

    class Meta:
        app_label = "orchestrator"
        db_table = "signing_keys"
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return self.key_id


class AuditBundle(models.Model):
    """An audit bundle that was written. The row outlives its artifact and its job.

    Attributes:
        job_ulid: The attempt of the export job.
        since: The beginning of the time that the bundle covers.
        until: The end of that time.
        sha256: The digest of the whole file.
        key_id: The key that has signed it.
        lines: The number of lines of each data file, by name.
    """

    org_slug = models.CharField(max_length=63)
    job_ulid = models.CharField(max_length=ID_LENGTH, unique=True)
    since = models.DateTimeField()
    until = models.DateTimeField()
    byte_count = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    key_id = models.CharField(max_length=64)
    lines = models.JSONField()
    written_at = models.DateTimeField()

    class Meta:
        app_label = "orchestrator"
        db_table = "audit_bundles"
        default_permissions = ("view",)
        verbose_name = "audit bundle"

    def __str__(self) -> str:
        return f"{self.org_slug} {self.since:%Y-%m-%d} - {self.until:%Y-%m-%d}"
