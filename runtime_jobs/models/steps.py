"""The steps of a workflow job: what each one executes, its status, and where its log is."""

from django.db import models
from django.db.models import Q

from runtime_jobs.models.jobs import Job
from runtime_jobs.states import ENDED_STEP_STATUSES, OPEN_STEP_STATUSES, Conclusion, StepStatus


class JobStep(models.Model):
    """A step of a job. Only `orchestrator.step_logs.steps` writes `status` and `conclusion`.

    The history of the job contains no events of its steps: the rows are their history.

    Attributes:
        step_id: The `id` of the step in the workflow file, or empty.
        condition: The `if` of the step, or empty.
        run: A script for the shell, or empty.
        uses: The name of a built-in action, or empty.
        with_values: The parameters of the action.
        log_object_key: The object that has the whole log, once it is finalized.
        log_byte_count: The length of that object.
    """

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(
        Job,
        to_field="job_ulid",
        db_column="job_ulid",
        on_delete=models.CASCADE,
        related_name="steps",
        db_index=False,
        db_constraint=False,  # checked by the audit
    )
    index = models.PositiveIntegerField()
    step_id = models.CharField(max_length=100, blank=True)
    name = models.CharField(max_length=256, blank=True)
    condition = models.TextField(blank=True)
    run = models.TextField(blank=True)
    uses = models.CharField(max_length=256, blank=True)
    working_directory = models.CharField(max_length=1024, blank=True)
    env = models.JSONField(default=dict)
    with_values = models.JSONField(default=dict)
    continue_on_error = models.BooleanField(default=False)
    status = models.CharField(max_length=20, choices=StepStatus.choices, default=StepStatus.QUEUED, editable=False)
    conclusion = models.CharField(max_length=20, null=True, choices=Conclusion.choices, editable=False)
    started_at = models.DateTimeField(null=True)
    completed_at = models.DateTimeField(null=True)
    log_object_key = models.CharField(max_length=1024, null=True)
    log_byte_count = models.BigIntegerField(default=0)

    class Meta:
        db_table = "runtime_job_steps"
        constraints = [
            models.UniqueConstraint(fields=["job", "index"], name="one_step_per_index"),
            models.CheckConstraint(
                name="job_step_runs_or_uses",
                condition=(~Q(run="") & Q(uses="")) | (Q(run="") & ~Q(uses="")),
            ),
            models.CheckConstraint(
                name="job_step_end",
                condition=Q(status__in=OPEN_STEP_STATUSES, conclusion__isnull=True, completed_at__isnull=True)
                | Q(status__in=ENDED_STEP_STATUSES, conclusion__isnull=False, completed_at__isnull=False),
            ),
            models.CheckConstraint(name="job_step_log_byte_count", condition=Q(log_byte_count__gte=0)),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} step {self.index}"

    @property
    def is_ended(self) -> bool:
        return self.status in ENDED_STEP_STATUSES

    @property
    def display_name(self) -> str:
        """The name, else the id, else what the step executes."""
        first_line = self.run.strip().partition("\n")[0]
        return self.name or self.step_id or self.uses or first_line[:100]
