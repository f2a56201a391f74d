"""Schedules of organizations, and the outcome of each of their times."""

from typing import Final

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from orchestrator.core.managed_rows import ManagedRow
from runtime_jobs.identifiers import ID_LENGTH, new_schedule_id
from runtime_jobs.models import Organization

MAX_NAME_LENGTH: Final = 100
MAX_CRON_LENGTH: Final = 200
MAX_ZONE_LENGTH: Final = 64
MAX_MESSAGE_LENGTH: Final = 500


class ScheduleStatus(models.TextChoices):
    """Whether a schedule submits jobs."""

    ACTIVE = "active"
    PAUSED = "paused"


class MissedPolicy(models.TextChoices):
    """The policy for times that have passed while no scheduler process was running."""

    LATEST = "latest"  # one job, for the latest of them
    ALL = "all"  # a job for each of them, the oldest first
    SKIP = "skip"  # none


class OverlapPolicy(models.TextChoices):
    """The policy for a time at which the job of an earlier one has not ended."""

    ALLOW = "allow"  # both run
    QUEUE = "queue"  # the new job waits for the end of the earlier one
    SKIP = "skip"  # no job is submitted
    CANCEL = "cancel"  # the earlier job is canceled


class TickOutcome(models.TextChoices):
    """The outcome of one time of a schedule."""

    SUBMITTED = "submitted"  # `job_ulid` is the job
    REFUSED = "refused"  # by the rules of a submit, as `error_code` and `message` say
    OVERLAPPED = "overlapped"  # skipped, because an earlier job had not ended
    MISSED = "missed"  # skipped with all times before `missed_before`, because they had passed


class Schedule(ManagedRow):
    """A request for a job that is repeated at the times of a cron expression.

    Attributes:
        job: The body of a submit, without the organization and the trigger.
        next_at: The time of the next job. Null while the schedule is paused, and after the last time of the expression.
    """

    id = models.BigAutoField(primary_key=True)
    schedule_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_schedule_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="schedules")
    name = models.CharField(max_length=MAX_NAME_LENGTH)
    cron = models.CharField(max_length=MAX_CRON_LENGTH)
    time_zone = models.CharField(max_length=MAX_ZONE_LENGTH)
    job = models.JSONField()
    missed = models.CharField("missed times", max_length=10, choices=MissedPolicy.choices, default=MissedPolicy.LATEST)
    overlap = models.CharField(max_length=10, choices=OverlapPolicy.choices, default=OverlapPolicy.ALLOW)
    status = models.CharField(max_length=10, choices=ScheduleStatus.choices, default=ScheduleStatus.ACTIVE)
    next_at = models.DateTimeField("next time", null=True)

    class Meta:
        db_table = "schedules"
        constraints = [
            models.UniqueConstraint(fields=["organization", "name"], name="one_schedule_per_name"),
            models.CheckConstraint(
                condition=Q(status=ScheduleStatus.ACTIVE) | Q(next_at__isnull=True), name="no_next_time_while_paused"
            ),
        ]
        indexes = [
            # The scheduler process: schedules that are due.
            models.Index(fields=["next_at"], name="schedules_due", condition=Q(next_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_ulid} of {self.organization.slug}"

    @property
    def event_target(self) -> str:
        """The name in operator events."""
        return f"schedule:{self.schedule_ulid}"

    @property
    def concurrency_key(self) -> str:
        """The key of the concurrency group of the schedule's jobs, where they may not run at once."""
        return f"schedule/{self.schedule_ulid}"


class ScheduleTick(models.Model):
    """One time of a schedule, or a request to submit its job now.

    Attributes:
        due_at: The time of the schedule. Of missed times, the first one.
        missed_before: The first later time that was not missed, or null if none follows.
        is_manual: A client or operator requested the job.
        job_ulid: The job, which retention may have deleted.
    """

    id = models.BigAutoField(primary_key=True)
    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="ticks", db_index=False)
    due_at = models.DateTimeField("time")
    outcome = models.CharField(max_length=10, choices=TickOutcome.choices)
    is_manual = models.BooleanField("requested by hand", default=False)
    job_ulid = models.CharField("job", max_length=ID_LENGTH, null=True)
    missed_before = models.DateTimeField(null=True)
    error_code = models.CharField(max_length=60, blank=True)
    message = models.CharField(max_length=MAX_MESSAGE_LENGTH, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "schedule_ticks"
        constraints = [
            models.UniqueConstraint(
                fields=["schedule", "due_at"], condition=Q(is_manual=False), name="one_tick_per_time"
            ),
        ]
        indexes = [
            # The list of the API, newest first.
            models.Index(fields=["schedule", "-id"], name="ticks_of_schedule"),
            # For retention, which deletes old ticks.
            models.Index(fields=["created_at"], name="schedule_ticks_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.outcome} at {self.due_at}"
