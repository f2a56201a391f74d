"""The public halves of the keys that sign evidence."""

from django.db import models


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
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.key_id
