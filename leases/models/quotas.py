"""Submit quotas: how many more jobs each organization may submit."""

from django.db import models


class SubmitQuota(models.Model):
    """The submit quota of one organization, written by the functions in `leases/sql/submit_quota.sql` only.

    `room` is a promise, not a count: a submit takes from it, a claim gives nothing back, and a recount sets it to
    `max_queued` minus the jobs that wait. So `room` plus the waiting jobs never exceeds `max_queued`, and neither
    claims nor completions write this row. `recount_at`: no recount before that time. `spent_until`: the token bucket
    of the submit rate, as the time when the bucket is full again.
    """

    org_slug = models.CharField(max_length=63, unique=True)
    max_queued = models.PositiveIntegerField(null=True, help_text="As the plan had it at the last count.")
    room = models.IntegerField(default=0)
    counted_at = models.DateTimeField(null=True)
    recount_at = models.DateTimeField(null=True)
    spent_until = models.DateTimeField(null=True)

    class Meta:
        db_table = "submit_quotas"

    def __str__(self) -> str:
        return f"{self.org_slug}: {self.room} of {self.max_queued}"
