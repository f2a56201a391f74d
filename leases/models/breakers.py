"""Circuit breakers: they stop jobs of one type of an organization after too many failures."""

from django.db import models
from django.db.models import Exists, OuterRef

from leases.models.limits import LimitSlot


class BreakerState(models.TextChoices):
    """The state of a breaker."""

    CLOSED = "closed"  # no effect
    OPEN = "open"  # no job starts until `cool_until`
    HALF_OPEN = "half_open"  # one job starts as a probe


class BreakerQuerySet(models.QuerySet["Breaker"]):
    """Annotations of breakers."""

    def with_probe(self) -> "BreakerQuerySet":
        """Annotate each breaker with `is_probing`: whether a job runs that tests it."""
        taken = LimitSlot.objects.filter(limit_id=OuterRef("limit_id"), job_id__isnull=False)
        return self.annotate(is_probing=Exists(taken))


class Breaker(models.Model):
    """A breaker. Failures before `seen_from` do not count. `limit_id`: the limit of its jobs while it is not closed."""

    org_slug = models.CharField(max_length=63)
    job_type = models.CharField(max_length=50)
    state = models.CharField(max_length=10, choices=BreakerState.choices, default=BreakerState.CLOSED)
    opened_at = models.DateTimeField(null=True)
    cool_until = models.DateTimeField(null=True)
    seen_from = models.DateTimeField(null=True)
    limit_id = models.IntegerField(null=True)

    objects = BreakerQuerySet.as_manager()

    class Meta:
        db_table = "lane_breakers"
        constraints = [models.UniqueConstraint(fields=["org_slug", "job_type"], name="one_breaker")]

    def __str__(self) -> str:
        return f"{self.org_slug} {self.job_type}: {self.state}"
