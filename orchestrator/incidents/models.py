"""Incidents, and the incident mode of an organization."""

from django.db import models

from runtime_jobs.identifiers import ID_LENGTH, new_incident_id


class IncidentKind(models.TextChoices):
    """The cause of an incident."""

    BREAKER = "breaker"  # a circuit breaker opened
    JOB = "job"  # a job failed through no fault of its own, and is not retried
    REPLAY = "replay"  # a replay of a job had another result
    WEBHOOK = "webhook"  # the receiver of a webhook has failed for days
    WORKER = "worker"  # a worker pauses, because its jobs fail for reasons of its own


class IncidentStatus(models.TextChoices):
    """The status of an incident."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


class IncidentQuerySet(models.QuerySet["Incident"]):
    """Filters of incidents."""

    def unresolved(self) -> "IncidentQuerySet":
        return self.filter(resolved_at=None)

    def with_status(self, status: str) -> "IncidentQuerySet":
        if status == IncidentStatus.RESOLVED:
            return self.exclude(resolved_at=None)
        return self.unresolved().filter(acknowledged_at__isnull=status == IncidentStatus.OPEN)


class Incident(models.Model):
    """An event for operators until it is resolved (document 004).

    Unresolved incidents of jobs are the list of dead letters: jobs that failed, and that nothing retries.

    Attributes:
        job_ulid: The job, an attempt, if the incident concerns one.
        org_slug: The organization, or empty for an incident of a worker.
        webhook_ulid: The webhook, if the incident concerns one. Retention may have deleted it.
        worker_ulid: The worker, if the incident concerns one.
        reason: The reason of the failure, from the list of failure reasons.
        resolution: How it was resolved.
    """

    incident_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_incident_id, editable=False)
    kind = models.CharField(max_length=20, choices=IncidentKind.choices)
    org_slug = models.CharField(max_length=63, blank=True)
    job_type = models.CharField(max_length=50)
    job_ulid = models.CharField(max_length=ID_LENGTH, null=True)
    webhook_ulid = models.CharField(max_length=ID_LENGTH, null=True)
    worker_ulid = models.CharField(max_length=ID_LENGTH, null=True)
    reason = models.CharField(max_length=40, blank=True, default="", db_default="")
    summary = models.CharField(max_length=500)
    opened_at = models.DateTimeField()
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.CharField(max_length=200, blank=True, default="", db_default="")
    resolved_at = models.DateTimeField(null=True)
    resolved_by = models.CharField(max_length=200, blank=True)
    resolution = models.CharField(max_length=500, blank=True, default="", db_default="")

    objects = IncidentQuerySet.as_manager()

    class Meta:
        db_table = "incidents"
        constraints = [
            models.UniqueConstraint(
                fields=["job_ulid", "kind"],
                condition=models.Q(resolved_at=None, job_ulid__isnull=False),
                name="one_unresolved_incident_per_job",
            ),
            models.UniqueConstraint(
                fields=["webhook_ulid"],
                condition=models.Q(resolved_at=None, webhook_ulid__isnull=False),
                name="one_unresolved_incident_per_webhook",
            ),
            models.UniqueConstraint(
                fields=["worker_ulid"],
                condition=models.Q(resolved_at=None, worker_ulid__isnull=False),
                name="one_unresolved_incident_per_worker",
            ),
        ]
        indexes = [
            models.Index(fields=["org_slug", "job_type"], name="incidents_open", condition=models.Q(resolved_at=None)),
            models.Index(fields=["job_ulid"], name="incidents_of_jobs", condition=models.Q(job_ulid__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.summary

    @property
    def status(self) -> IncidentStatus:
        """The status, by the newest of its times."""
        if self.resolved_at is not None:
            return IncidentStatus.RESOLVED
        return IncidentStatus.OPEN if self.acknowledged_at is None else IncidentStatus.ACKNOWLEDGED


class IncidentMode(models.Model):
    """The time in which an organization is in incident mode: its records are kept, and notifications are sent at once.

    A row whose `until` has passed has no effect. The scheduler process removes it.
    """

    org_slug = models.CharField(max_length=63, unique=True)
    reason = models.CharField(max_length=500)
    begun_at = models.DateTimeField()
    begun_by = models.CharField(max_length=200)
    until = models.DateTimeField()

    class Meta:
        db_table = "incident_modes"

    def __str__(self) -> str:
        return f"{self.org_slug} until {self.until}"
