"""Circuit breakers: one organization's jobs of one type, held back because too many of them failed."""

from django.db import models


class BreakerState(models.TextChoices):
    CLOSED = "closed"  # lets everything through
    OPEN = "open"  # lets nothing start until it has cooled down
    HALF_OPEN = "half_open"  # lets one job start, and waits for its end


class Breaker(models.Model):
    """`seen_from`: failures before it count no more. `limit_id`: what holds its jobs while it is not closed."""

    org_slug = models.CharField(max_length=63)
    job_type = models.CharField(max_length=50)
    state = models.CharField(max_length=10, choices=BreakerState.choices, default=BreakerState.CLOSED)
    opened_at = models.DateTimeField(null=True)
    cool_until = models.DateTimeField(null=True)
    seen_from = models.DateTimeField(null=True)
    limit_id = models.IntegerField(null=True)

    class Meta:
        db_table = "lane_breakers"
        constraints = [models.UniqueConstraint(fields=["org_slug", "job_type"], name="one_breaker")]

    def __str__(self) -> str:
        return f"{self.org_slug} {self.job_type}: {self.state}"
