"""The tasks of housekeeping that wait, run, have failed or recur."""

from django.db import models
from django.db.models.functions import Now

MAX_ERROR_LENGTH = 2_000


class HousekeepingTask(models.Model):
    """One task: its kind, its subject, and when it is due. A task that occurs once is deleted when it has succeeded.

    Attributes:
        subject: What the task concerns, such as the number of a repository; empty for a task of the installation.
        due_at: When it may be executed; None: it failed for good, and only a new request or an operator starts it.
        requested_count: Raised by each request, so that a request during an execution is not lost.
        claim_count: Raised by each claim. A process that has lost its claim changes nothing.
        claimed_until: Until when a process executes it. A process that lives moves this time forward.
        failures: Failures in a row.
        last_error: The message of the last failure; empty after a success.
    """

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=63)
    subject = models.CharField(max_length=200, blank=True)
    due_at = models.DateTimeField("due", null=True)
    requested_count = models.BigIntegerField(default=1, db_default=1)
    claim_count = models.BigIntegerField(default=0, db_default=0)
    claimed_by = models.CharField(max_length=100, blank=True, db_default="")
    claimed_until = models.DateTimeField(null=True)
    failures = models.PositiveIntegerField(default=0, db_default=0)
    last_error = models.CharField(max_length=MAX_ERROR_LENGTH, blank=True, db_default="")
    failed_at = models.DateTimeField("last failure", null=True)
    succeeded_at = models.DateTimeField("last success", null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "housekeeping_tasks"
        constraints = [models.UniqueConstraint(fields=["kind", "subject"], name="one_housekeeping_task_per_subject")]
        indexes = [
            models.Index(
                fields=["due_at"], condition=models.Q(due_at__isnull=False), name="housekeeping_tasks_by_due_time"
            ),
            models.Index(fields=["failures"], condition=models.Q(failures__gt=0), name="housekeeping_tasks_failing"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}".strip()
