"""Workflow runs: a batch of jobs that a workflow file describes, started by an event of a repository."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from runtime_jobs.models.batches import Batch
from runtime_jobs.models.repositories import Repository
from runtime_jobs.states import Conclusion

MAX_FILE = 256
MAX_REF = 256
MAX_GROUP = 256
MAX_TRIGGER_ID = 200


class WorkflowEvent(models.TextChoices):
    """The event that started a run."""

    PUSH = "push"
    PULL_REQUEST = "pull_request"
    SCHEDULE = "schedule"
    DISPATCH = "workflow_dispatch"


class RunHold(models.TextChoices):
    """The reason why no job of a run may be claimed yet."""

    APPROVAL = "approval"  # a person must approve code of a fork
    CONCURRENCY = "concurrency"  # an older run of the group has not ended


class WorkflowRun(models.Model):
    """A run of a workflow file at a commit. Its jobs are those of its batch. The wire names a run by its number.

    Only `orchestrator.workflows.runs` writes a run. Its state follows from its jobs: see `selectors.runs`.

    Attributes:
        batch: The jobs, which are listed and canceled together.
        run_index: The number of the run within its repository, from 1.
        head_sha: The commit whose workflow file was read, and which is checked out.
        head_ref: The full ref, such as `refs/heads/main`, or empty.
        event_payload: The values of `shithub.event`.
        actor: The person or program that caused the run.
        from_fork: The commit is that of another repository than this one.
        parent: The run that was run again.
        job_keys: The keys of all jobs in the order of the file. Their rows are in the order of their needs.
        carried: By key, the jobs of the parent that a partial rerun does not repeat: `job_id`, `name`, `conclusion`.
        edits: What the rerun changed: `inputs`, `env`, `runs_on`, `timeout_minutes`.
        reason: Why it was run again.
        concurrency_group: The group, evaluated; empty: none.
        cancels_older: The start of the run cancels older runs of its group instead of waiting for them.
        trigger_id: The event. A file of a repository runs once for each. Empty: there is none.
        hold: Why no job may be claimed, or empty.
        needs_approval: A person had to approve the run, or still has to.
        conclusion: Null until all jobs have ended.
        pinned: Retention keeps the run.
    """

    id = models.BigAutoField(primary_key=True)
    batch = models.OneToOneField(Batch, on_delete=models.CASCADE, related_name="workflow_run")
    repository = models.ForeignKey(Repository, on_delete=models.PROTECT, related_name="runs", db_index=False)
    run_index = models.PositiveBigIntegerField()
    workflow_file = models.CharField(max_length=MAX_FILE)
    workflow_name = models.CharField(max_length=256, blank=True)
    head_sha = models.CharField(max_length=64)
    head_ref = models.CharField(max_length=MAX_REF, blank=True)
    event = models.CharField(max_length=20, choices=WorkflowEvent.choices)
    event_payload = models.JSONField(default=dict)
    actor = models.CharField(max_length=200, blank=True)
    from_fork = models.BooleanField(default=False)
    parent = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, related_name="reruns")
    job_keys = models.JSONField(default=list)
    carried = models.JSONField(default=dict)
    edits = models.JSONField(default=dict)
    reason = models.CharField(max_length=500, blank=True)
    concurrency_group = models.CharField(max_length=MAX_GROUP, blank=True)
    cancels_older = models.BooleanField(default=False)
    trigger_id = models.CharField(max_length=MAX_TRIGGER_ID, blank=True)
    hold = models.CharField(max_length=20, blank=True, choices=RunHold.choices)
    needs_approval = models.BooleanField(default=False)
    approved_by = models.CharField(max_length=200, blank=True)
    approved_at = models.DateTimeField(null=True)
    conclusion = models.CharField(max_length=20, null=True, choices=Conclusion.choices)
    completed_at = models.DateTimeField(null=True)
    pinned = models.BooleanField(default=False)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "workflow_runs"
        constraints = [
            # The list of a repository's runs, too.
            models.UniqueConstraint(fields=["repository", "run_index"], name="one_run_per_index"),
            models.UniqueConstraint(
                fields=["repository", "workflow_file", "trigger_id"],
                condition=~Q(trigger_id=""),
                name="one_run_per_trigger",
            ),
            models.CheckConstraint(
                name="workflow_run_end",
                condition=Q(conclusion__isnull=True, completed_at__isnull=True)
                | Q(conclusion__isnull=False, completed_at__isnull=False),
            ),
        ]
        indexes = [
            # The runs of a group that have not ended, and runs whose end is not recorded yet.
            models.Index(
                fields=["repository", "concurrency_group"],
                name="workflow_runs_open",
                condition=Q(conclusion__isnull=True),
            ),
            # The checks of a commit.
            models.Index(fields=["repository", "head_sha"], name="workflow_runs_of_commit"),
            # Retention.
            models.Index(
                fields=["completed_at"],
                name="workflow_runs_ended",
                condition=Q(completed_at__isnull=False, pinned=False),
            ),
        ]

    def __str__(self) -> str:
        return f"run {self.pk} (#{self.run_index})"

    @property
    def display_name(self) -> str:
        """The name of the workflow, else its file."""
        return self.workflow_name or self.workflow_file


class RejectedWorkflow(models.Model):
    """A workflow file that an event should have run, and that is wrong. `diagnostics` has path, line and message."""

    id = models.BigAutoField(primary_key=True)
    repository = models.ForeignKey(Repository, on_delete=models.CASCADE, related_name="rejected_workflows")
    workflow_file = models.CharField(max_length=MAX_FILE)
    head_sha = models.CharField(max_length=64)
    head_ref = models.CharField(max_length=MAX_REF, blank=True)
    event = models.CharField(max_length=20, choices=WorkflowEvent.choices)
    trigger_id = models.CharField(max_length=MAX_TRIGGER_ID)
    diagnostics = models.JSONField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "rejected_workflows"
        constraints = [
            models.UniqueConstraint(
                fields=["repository", "workflow_file", "trigger_id"], name="one_rejection_per_trigger"
            )
        ]
        # Retention.
        indexes = [models.Index(fields=["created_at"], name="rejected_workflows_by_age")]

    def __str__(self) -> str:
        return f"{self.workflow_file} at {self.head_sha[:12]}"


class WorkflowSchedule(models.Model):
    """A schedule of a workflow file on the default branch, and when it fires next."""

    id = models.BigAutoField(primary_key=True)
    repository = models.ForeignKey(
        Repository, on_delete=models.CASCADE, related_name="workflow_schedules", db_index=False
    )
    workflow_file = models.CharField(max_length=MAX_FILE)
    cron = models.CharField(max_length=200)
    next_at = models.DateTimeField()

    class Meta:
        db_table = "workflow_schedules"
        constraints = [
            models.UniqueConstraint(fields=["repository", "workflow_file", "cron"], name="one_workflow_schedule")
        ]
        # For housekeeping: what is due.
        indexes = [models.Index(fields=["next_at"], name="workflow_schedules_by_time")]

    def __str__(self) -> str:
        return f"{self.workflow_file} at {self.cron}"


class WorkflowTrigger(models.Model):
    """An event that was received and must still be matched with the workflow files of its commit.

    Attributes:
        facts: The fields of a `TriggerEvent` and of the runs that it may start.
        trigger_id: The event. It is stored once.
        processed_at: When its runs were started; null: not yet.
    """

    id = models.BigAutoField(primary_key=True)
    repository = models.ForeignKey(
        Repository, on_delete=models.CASCADE, related_name="workflow_triggers", db_index=False
    )
    event = models.CharField(max_length=20, choices=WorkflowEvent.choices)
    trigger_id = models.CharField(max_length=MAX_TRIGGER_ID)
    head_sha = models.CharField(max_length=64)
    facts = models.JSONField()
    received_at = models.DateTimeField(db_default=Now())
    processed_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "workflow_triggers"
        constraints = [models.UniqueConstraint(fields=["repository", "trigger_id"], name="one_workflow_trigger")]
        # Retention.
        indexes = [models.Index(fields=["received_at"], name="workflow_triggers_by_age")]

    def __str__(self) -> str:
        return self.trigger_id
