"""Idempotency keys: a repeated request returns the first answer."""

from django.contrib.postgres.indexes import HashIndex
from django.db import models


class IdempotencyKey(models.Model):
    """One key of one principal for one operation, with the digest of the request and its result."""

    principal = models.CharField(max_length=100)
    operation = models.CharField(max_length=200)
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64)
    result_id = models.TextField(help_text="Ids; of many jobs, what became of each, as JSON.")
    created_at = models.DateTimeField()

    class Meta:
        db_table = "idempotency_keys"
        constraints = [
            models.UniqueConstraint(fields=["principal", "operation", "key"], name="one_use_of_an_idempotency_key")
        ]
        indexes = [
            # For retention, which deletes old keys.
            models.Index(fields=["created_at"], name="idempotency_keys_by_age"),
            # For the lists of jobs, which filter by a key that any client of the organization has sent.
            models.Index(fields=["key"], name="idempotency_keys_by_key"),
            # For the key of a job. A B-tree has no room for the results of a bulk submit.
            HashIndex(fields=["result_id"], name="idempotency_keys_by_result"),
        ]

    def __str__(self) -> str:
        return f"{self.operation} {self.key}"
