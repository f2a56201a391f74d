"""Tokens that were used, one row each, and chains of tokens that a runner has started anew."""

from django.db import models


class UsedToken(models.Model):
    """A single-use token that was used. The row is the proof: a second insert of the same token is refused.

    The table is partitioned by the day of `expires_at`, and whole days are dropped (`job_tokens.partitions`). The key
    begins with the expiry: tokens that are used now have neighboring keys, however many rows the table has.
    """

    pk = models.CompositePrimaryKey("expires_at", "jti")
    expires_at = models.DateTimeField()
    jti = models.CharField(max_length=128)
    runner_id = models.BigIntegerField()
    job_id = models.BigIntegerField()
    used_at = models.DateTimeField()

    class Meta:
        app_label = "orchestrator"
        db_table = "actions_used_tokens"

    def __str__(self) -> str:
        return f"token of job {self.job_id} until {self.expires_at}"


class TokenChain(models.Model):
    """The newest chain of tokens of a lease, if its runner has started another one than the first.

    Attributes:
        fence: The fence of the lease.
        number: Tokens with a lower number are refused.
    """

    job_id = models.BigIntegerField(primary_key=True)
    fence = models.BigIntegerField()
    number = models.PositiveIntegerField()

    class Meta:
        app_label = "orchestrator"
        db_table = "actions_token_chains"

    def __str__(self) -> str:
        return f"chain {self.number} of job {self.job_id}"
