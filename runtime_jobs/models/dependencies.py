"""Dependencies between jobs, and ended jobs whose dependents were not checked yet."""

from django.db import models

from runtime_jobs.identifiers import ID_LENGTH
from runtime_jobs.models.jobs import Job


class Dependency(models.Model):
    """A dependency: `job` starts only after `on` has ended. Both are first attempts and stand for their retries.

    A job can only name jobs that exist, so `on` is the older one: there are no cycles.
    """

    job = models.ForeignKey(
        Job, to_field="job_ulid", db_column="job_ulid", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    on = models.ForeignKey(
        Job, to_field="job_ulid", db_column="on_job_ulid", on_delete=models.CASCADE, related_name="+", db_index=False
    )

    needs_success = models.BooleanField(default=True, db_default=True, help_text="Without it any end is enough.")

    class Meta:
        db_table = "runtime_job_dependencies"
        constraints = [models.UniqueConstraint(fields=["job", "on"], name="one_dependency")]
        # For `orchestrator.services.dependency_propagation`: the dependents of an ended job.
        indexes = [models.Index(fields=["on", "job"], name="dependents_of_job")]

    def __str__(self) -> str:
        return f"{self.job_id} after {self.on_id}"


class EndedDependency(models.Model):
    """A job with dependents has ended. Written in the same transaction, deleted when all dependents were checked.

    `looked_to`: the highest id of a checked dependent.
    """

    root_job_ulid = models.CharField(max_length=ID_LENGTH)
    looked_to = models.BigIntegerField(default=0)

    class Meta:
        db_table = "runtime_ended_dependencies"

    def __str__(self) -> str:
        return f"{self.root_job_ulid} to {self.looked_to}"
