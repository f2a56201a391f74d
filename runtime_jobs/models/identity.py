"""Keys that sign the identity tokens of workflow jobs."""

from django.db import models


class IdentityKey(models.Model):
    """A key pair. Its public half is published before the private one signs, because verifiers cache what they read.

    Attributes:
        kid: The id of the key in tokens and in the published set.
        sealed: The private key in PKCS #8, sealed.
        public_jwk: The public key as it is published.
        signs_from: The first time of a token that it signs. Of all keys whose time has come the newest one signs.
    """

    kid = models.CharField(max_length=64, unique=True)
    sealed = models.BinaryField(editable=False)
    public_jwk = models.JSONField()
    created_at = models.DateTimeField()
    signs_from = models.DateTimeField()

    class Meta:
        db_table = "identity_keys"
        verbose_name = "identity key"

    def __str__(self) -> str:
        return self.kid
