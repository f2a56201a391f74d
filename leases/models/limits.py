"""How many jobs may run at once. A limit of N is N rows: whoever holds one may run, so it cannot be exceeded."""

from django.db import models
from django.db.models import Q


class LimitKind(models.TextChoices):
    ORGANIZATION = "organization"  # of one organization, of one job type or of all (`*`)


class Limit(models.Model):
    """`key` says of what, in the words of its kind. `waiting`: somebody is blocked by it."""

    id = models.AutoField(primary_key=True)
    kind = models.CharField(max_length=20, choices=LimitKind.choices)
    org_slug = models.CharField(max_length=63, blank=True)
    key = models.CharField(max_length=200)
    max_active = models.PositiveIntegerField()
    waiting = models.BooleanField(default=False)

    class Meta:
        db_table = "lane_limits"
        constraints = [models.UniqueConstraint(fields=["kind", "org_slug", "key"], name="one_limit")]

    def __str__(self) -> str:
        return f"{self.kind} {self.org_slug} {self.key}: {self.max_active}"


class LimitSlot(models.Model):
    """One running job's place under a limit. `retired`: the limit was lowered meanwhile; it is not given again."""

    limit_id = models.IntegerField()
    n = models.IntegerField()
    job_id = models.BigIntegerField(null=True)
    retired = models.BooleanField(default=False)

    class Meta:
        db_table = "lane_limit_slots"
        constraints = [models.UniqueConstraint(fields=["limit_id", "n"], name="one_limit_slot")]
        indexes = [
            models.Index(
                fields=["limit_id", "n"], name="limit_slots_free", condition=Q(job_id__isnull=True, retired=False)
            ),
            models.Index(fields=["job_id"], name="limit_slots_of_job", condition=Q(job_id__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.limit_id}/{self.n}"
