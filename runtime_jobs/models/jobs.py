"""One row per job: request, policy, state and result."""

from __future__ import annotations

import shlex
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final, NamedTuple

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.expressions import CombinedExpression
from django.db.models.fields.json import KT

from runtime_jobs.db_functions import PlannerOpaqueValue
from runtime_jobs.identifiers import ID_LENGTH, new_job_id
from runtime_jobs.models.batches import Batch
from runtime_jobs.models.idempotency import IdempotencyKey
from runtime_jobs.models.tenants import JobTrace
from runtime_jobs.states import (
    FINAL_STATES,
    LEASED_STATES,
    SETTLING_STATES,
    STATUS,
    STATUS_WITHOUT_INGEST,
    WAITING_STATES,
    CancelReason,
    FailureClass,
    FailureReason,
    JobState,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


class RetryKind(models.TextChoices):
    """The cause of a new attempt."""

    AUTOMATIC = "automatic"
    MANUAL = "manual"


# The request. Operations on many jobs read the rows without these columns.
SUBMISSION_FIELDS = (
    *("source_kind", "repo_url", "repo_owner", "repo_name", "git_ref", "git_commit", "pull_request_number"),
    *("trigger_kind", "trigger_actor", "working_directory", "command_json", "allow_network", "allow_exec", "spec"),
    *("requirements", "payload_digest", "source_address", "least_isolation", "trace", "priority", "pool"),
)


# The key of a job as `jobs_queued_of_type` has it. The primary key has the same order, and where the planner can choose
# it takes that one, in the belief that jobs which match are everywhere: it passed over 239,000 newer jobs.
KEY_OF_QUEUED: Final = F("id") + 0


class IndexPart(NamedTuple):
    """Jobs that one index has in the order of their keys.

    Attributes:
        condition: The condition of these jobs.
        key: The key, as the index has it.
    """

    condition: Q
    key: F | CombinedExpression = F("id")


class JobQuerySet(models.QuerySet["Job"]):
    """Filters of jobs, which chain."""

    def of_organizations(self, slugs: list[str]) -> JobQuerySet:
        if len(slugs) == 1:
            return self.filter(org_slug=PlannerOpaqueValue(Value(slugs[0])))
        return self.filter(org_slug__in=slugs)

    def of_idempotency_key(self, key: str, name: str = "job_ulid") -> JobQuerySet:
        """Filter by the key of the submit, while it is kept.

        Args:
            key: The key, whoever has sent it.
            name: The column with the id of the job: `root_job_ulid` for all attempts of it.
        """
        return self.filter(**{f"{name}__in": IdempotencyKey.objects.filter(key=key).values("result_id")})

    def of_types(self, job_types: Sequence[str]) -> JobQuerySet:
        return self.filter(job_type__in=job_types)

    def with_status(self, *statuses: str) -> JobQuerySet:
        """Filter by public statuses, in the terms of the partial indexes.

        Args:
            statuses: Words of `STATUS` and `STATUS_WITHOUT_INGEST`.
        """
        condition = Q()
        for status in statuses:
            states = [state for state, word in STATUS.items() if word == status]
            if states and set(FINAL_STATES).isdisjoint(states):
                # One partial index serves all leased states, and one those that settle. Each waiting state has its own.
                for part in (LEASED_STATES, SETTLING_STATES):
                    condition |= Q(state__in=[state for state in states if state in part])
                condition |= reduce(or_, (Q(state=state) for state in states if state in WAITING_STATES), Q())
            else:
                condition |= Q(status=status, finished_at__isnull=False)
        return self.filter(condition)

    def in_key_order(self, key: F | CombinedExpression, *, newest: bool, after: int | None = None) -> JobQuerySet:
        """Return these jobs in the order of a key.

        Args:
            key: The key as an index has it; see `IndexPart`.
            newest: Whether the newest is the first.
            after: The key of the last job before the first one, or None.
        """
        ordered = self.alias(list_key=key).order_by("-list_key" if newest else "list_key")
        if after is None:
            return ordered
        return ordered.filter(list_key__lt=after) if newest else ordered.filter(list_key__gt=after)

    def first_by_key(
        self, parts: Sequence[IndexPart], *, size: int, after: int | None = None, newest: bool = True
    ) -> JobQuerySet:
        """Return the first of these jobs in the order of their keys.

        An index has the jobs of one status in the order of their keys, but not those of two. One query reads the first
        keys of each part in this order, and the first of all are among them. So it reads no more than `size` jobs of
        each part, however many there are. The rows are read by these keys alone: with the conditions repeated, the
        planner read 100,000 jobs that fulfil them and sorted them.

        Args:
            parts: Parts that together contain all of these jobs. Without any, the jobs are read as one part.
            size: The number of jobs.
            after: The key of the last job before the first one, or None.
            newest: Whether the newest is the first.
        """
        if not parts:
            return self.in_key_order(F("id"), newest=newest, after=after)[:size]
        keys, *others = (
            self.filter(part.condition).in_key_order(part.key, newest=newest, after=after).values("pk")[:size]
            for part in parts
        )
        found = Job.objects.filter(pk__in=keys.union(*others, all=True) if others else keys)
        return found.in_key_order(F("id"), newest=newest)[:size]

    def through_partial_indexes(self) -> JobQuerySet:
        """Name all states in the terms of the partial indexes, for a filter by time that one of them serves.

        Every job is in exactly one of them, so this excludes none.
        """
        waiting = reduce(or_, (Q(state=state) for state in WAITING_STATES))
        settling = Q(state__in=SETTLING_STATES)
        return self.filter(Q(finished_at__isnull=False) | Q(state__in=LEASED_STATES) | settling | waiting)

    def queued(self) -> JobQuerySet:
        return self.filter(state=JobState.QUEUED)

    def locked(self) -> JobQuerySet:
        """`FOR NO KEY UPDATE`: an open insert of an event row must not make a claimer skip the job."""
        return self.select_for_update(no_key=True, of=("self",))


class Job(models.Model):
    """A job: the columns of document 000 under its names, and further ones.

    Only the operations in `orchestrator.services` and the SQL of the claim write `state`. Columns that a job type does
    not use are null.
    """

    id = models.BigAutoField(primary_key=True)
    job_ulid = models.CharField(max_length=ID_LENGTH, unique=True, default=new_job_id, editable=False)
    org_slug = models.CharField(max_length=63)
    project_slug = models.CharField(max_length=63)

    # The request (document 000).
    source_kind = models.CharField(max_length=20, null=True)
    repo_url = models.CharField(max_length=512, null=True)
    repo_owner = models.CharField(max_length=100, null=True)
    repo_name = models.CharField(max_length=100, null=True)
    git_ref = models.CharField(max_length=255, null=True)
    git_commit = models.CharField(max_length=64, null=True)
    pull_request_number = models.BigIntegerField(null=True)
    trigger_kind = models.CharField(max_length=20)
    trigger_actor = models.CharField(max_length=200, null=True)
    working_directory = models.CharField(max_length=1024, null=True)
    command_json = models.JSONField(null=True)
    timeout_seconds = models.PositiveIntegerField(null=True)
    allow_network = models.BooleanField(null=True)
    allow_exec = models.BooleanField(null=True)

    # Attributes of all job types.
    job_type = models.CharField(max_length=50, default="runtime")
    spec = models.JSONField(default=dict)
    result = models.JSONField(null=True)
    priority = models.IntegerField()
    pool = models.CharField(max_length=63)
    lane_id = models.IntegerField(
        null=True, help_text="No foreign key: `leases`, which has `Lane`, imports this package."
    )
    concurrency_key = models.CharField(max_length=200, blank=True, help_text="One job of a key runs at a time.")
    limited_by_address = models.BooleanField(default=False, help_text="One job of its source address runs at a time.")
    requirements = ArrayField(models.CharField(max_length=63), default=list)
    excluded_workers = ArrayField(models.CharField(max_length=ID_LENGTH), default=list)
    payload_digest = models.CharField(max_length=64)
    correlation_id = models.CharField(max_length=64)
    source_address = models.GenericIPAddressField(null=True)

    # The policy, set by the type at submit. Operations read only these columns and know no type.
    max_requeues = models.PositiveSmallIntegerField()
    automatic_retries = models.PositiveSmallIntegerField()
    needs_ingest = models.BooleanField()
    complete_beats_cancel = models.BooleanField()
    lease_ttl_seconds = models.PositiveIntegerField()
    heartbeat_interval_seconds = models.PositiveIntegerField()
    acknowledge_within_seconds = models.PositiveIntegerField()
    late_result_seconds = models.PositiveIntegerField(
        default=0, help_text="A result counts for so long after the lease ended without one."
    )
    needs_processing = models.BooleanField(default=False, help_text="Its result is read before it succeeds.")
    timeout_grace_seconds = models.PositiveIntegerField(default=60, help_text="Beyond its time limit.")
    is_metered = models.BooleanField(default=False, help_text="Its minutes are billed.")
    least_isolation = models.CharField(max_length=20)
    trace = models.CharField(max_length=10, choices=JobTrace.choices, default=JobTrace.NONE)

    # The state.
    state = models.CharField(max_length=20, choices=JobState.choices, default=JobState.QUEUED, editable=False)
    status = models.GeneratedField(
        expression=Case(
            *(When(state=state, needs_ingest=False, then=Value(word)) for state, word in STATUS_WITHOUT_INGEST.items()),
            *(When(state=state, then=Value(word)) for state, word in STATUS.items()),
        ),
        output_field=models.CharField(max_length=20),
        db_persist=True,
    )
    fence = models.BigIntegerField(default=0, help_text="Rises with every lease.")
    requeue_count = models.PositiveSmallIntegerField(default=0)
    release_count = models.PositiveSmallIntegerField(default=0)
    event_seq = models.BigIntegerField(default=0)
    event_head = models.CharField(max_length=64, default="", help_text="Hash of its newest event.")
    progress = models.JSONField(null=True)
    log_bytes = models.BigIntegerField(default=0)
    cancel_requested_at = models.DateTimeField(null=True)
    cancel_reason = models.CharField(max_length=30, null=True, choices=CancelReason.choices)
    cancel_actor = models.CharField(max_length=200, null=True)
    cancel_message = models.TextField(null=True)
    cancel_deadline_at = models.DateTimeField(null=True)
    late_result_at = models.DateTimeField(null=True, help_text="When a lost job fails without a late result.")
    last_billed_minute = models.IntegerField(null=True, help_text="Minutes of this attempt that were billed.")

    # The result.
    ingest_run_id = models.CharField(max_length=64, null=True)
    failure_reason = models.CharField(max_length=30, null=True, choices=FailureReason.choices)
    failure_class = models.CharField(max_length=20, null=True, choices=FailureClass.choices)
    failure_message = models.TextField(null=True)
    exit_code = models.IntegerField(null=True)

    batch = models.ForeignKey(Batch, on_delete=models.PROTECT, related_name="jobs", null=True, db_index=False)

    # The attempt. A retry is a new row that refers to the one before.
    root_job_ulid = models.CharField(max_length=ID_LENGTH)
    retry_of_job_ulid = models.CharField(max_length=ID_LENGTH, null=True)
    retry_kind = models.CharField(max_length=20, null=True, choices=RetryKind.choices)
    replay_of_job_ulid = models.CharField(max_length=ID_LENGTH, null=True, help_text="The job that this one repeats.")
    attempt = models.PositiveIntegerField(default=1)
    has_artifacts = models.BooleanField(
        default=False, db_default=False, help_text="Its final event binds those that are complete."
    )
    awaited = models.BooleanField(
        default=False, help_text="Other jobs depend on this one and are checked when it ends."
    )
    automatic_retries_spent = models.PositiveSmallIntegerField(default=0, help_text="Since the last manual one.")

    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    phase_at = models.DateTimeField(help_text="When it came into its present state.")
    executing_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    updated_at = models.DateTimeField()

    objects = JobQuerySet.as_manager()

    # The columns that operations change after the insert; those of the lane only if the job gets another one.
    LANE_FIELDS = ("priority", "lane_id")
    CHANGED_FIELDS = (
        *("state", "phase_at", "started_at", "executing_at", "finished_at", "updated_at", "event_seq", "event_head"),
        *("progress", "log_bytes", "requeue_count", "release_count", "excluded_workers", "cancel_requested_at"),
        *("cancel_reason", "cancel_actor", "cancel_message", "cancel_deadline_at", "failure_reason", "failure_class"),
        *("failure_message", "exit_code", "result", "late_result_at", "last_billed_minute", "ingest_run_id"),
        *LANE_FIELDS,
    )

    class Meta:
        db_table = "runtime_jobs"
        permissions = [("operate_job", "May cancel, retry and revoke")]
        constraints = [
            # At most one newer attempt of each row, automatic or not.
            models.UniqueConstraint(
                fields=["retry_of_job_ulid"], condition=Q(retry_of_job_ulid__isnull=False), name="one_retry_per_job"
            ),
            models.UniqueConstraint(
                fields=["ingest_run_id"], condition=Q(ingest_run_id__isnull=False), name="one_job_per_ingest_run_id"
            ),
        ]
        indexes = [
            # The lists of the API, newest first, by cursor on the key.
            models.Index(F("org_slug"), F("id").desc(), name="jobs_of_organization"),
            models.Index(F("org_slug"), F("project_slug"), F("id").desc(), name="jobs_of_project_by_key"),
            # Jobs of a commit (document 000).
            models.Index(
                fields=["org_slug", "git_commit"], name="jobs_of_commit", condition=Q(git_commit__isnull=False)
            ),
            # Lists by a final status (document 000). Jobs of the other statuses are found by their state.
            models.Index(
                fields=["status", "created_at"], name="jobs_ended_by_status", condition=Q(finished_at__isnull=False)
            ),
            # Lists by the time of creation. Jobs that have not ended are few.
            models.Index(
                fields=["org_slug", "created_at"], name="jobs_ended_by_creation", condition=Q(finished_at__isnull=False)
            ),
            # The age of the oldest queued job, and lists of queued jobs.
            models.Index(fields=["created_at"], name="jobs_queued_by_age", condition=Q(state=JobState.QUEUED)),
            # The claim, and the place in the queue.
            models.Index(
                F("pool"),
                F("priority").desc(),
                F("created_at"),
                F("id"),
                name="jobs_in_claim_order",
                condition=Q(state=JobState.QUEUED),
            ),
            # The claim: the oldest of a lane.
            models.Index(fields=["lane_id", "id"], name="jobs_of_lane", condition=Q(state=JobState.QUEUED)),
            # How many are blocked, of one organization and in all, and the audit of them.
            models.Index(fields=["org_slug", "id"], name="jobs_blocked", condition=Q(state=JobState.BLOCKED)),
            # The scheduler process: overdue cancels and timeouts concern leased jobs only. Lists of running jobs.
            models.Index(
                fields=["state"],
                name="jobs_held",
                condition=Q(state__in=LEASED_STATES),
            ),
            # The scheduler process: lost jobs whose late window ends, results to read. Lists of running jobs.
            models.Index(
                fields=["state", "late_result_at"], name="jobs_settling", condition=Q(state__in=SETTLING_STATES)
            ),
            # Jobs of one concurrency key that have not ended.
            models.Index(
                fields=["org_slug", "concurrency_key"],
                name="jobs_of_concurrency_key",
                condition=~Q(concurrency_key="") & ~Q(state__in=FINAL_STATES),
            ),
            # The latest ends of an organization's jobs of one type: failures for its breaker, all for quotas.
            models.Index(
                F("org_slug"),
                F("job_type"),
                F("finished_at").desc(),
                name="jobs_ended",
                include=["started_at"],  # so that the starts of a day are counted in the index alone
                condition=Q(state__in=["failed", "succeeded", "canceled"]),
            ),
            models.Index(
                fields=["finished_at"],
                name="jobs_failed_lately",
                include=["failure_reason"],
                condition=Q(state="failed"),
            ),
            # Lists of the admin of what is rare: newer jobs may all be others.
            models.Index(fields=["id"], name="jobs_cancel_requested", condition=Q(cancel_requested_at__isnull=False)),
            models.Index(fields=["id"], name="jobs_retries", condition=Q(attempt__gt=1)),
            models.Index(fields=["id"], name="jobs_redelivered", condition=Q(fence__gt=1)),
            # The jobs of a batch, and its roll-up.
            models.Index(fields=["batch", "id"], name="jobs_of_batch", condition=Q(batch__isnull=False)),
            # The deletion of a hardware spec.
            models.Index(KT("spec__spec"), name="jobs_of_hardware_spec", condition=Q(job_type="oci")),
            # All attempts of one job.
            models.Index(fields=["root_job_ulid"], name="jobs_of_root"),
            # Lists of one type, newest first (document 004, section 10.2).
            models.Index(F("org_slug"), F("job_type"), F("id").desc(), name="jobs_of_type_by_key"),
            # The same for queued jobs: many newer ones may have ended.
            models.Index(
                F("org_slug"),
                F("job_type"),
                KEY_OF_QUEUED.desc(),
                name="jobs_queued_of_type",
                condition=Q(state=JobState.QUEUED),
            ),
            # The same by a final status. Jobs of the other statuses are few.
            models.Index(
                F("org_slug"),
                F("job_type"),
                F("status"),
                F("id").desc(),
                name="jobs_ended_of_type",
                condition=Q(finished_at__isnull=False),
            ),
            # Lists by a final status, newest first, and durations by status.
            models.Index(
                F("org_slug"),
                F("status"),
                F("id").desc(),
                name="jobs_ended_of_organization",
                condition=Q(finished_at__isnull=False),
            ),
            # Jobs that a caller has linked by an id of its own. Those of the other states are found by their state.
            models.Index(
                fields=["org_slug", "correlation_id"],
                name="jobs_ended_of_correlation",
                condition=Q(finished_at__isnull=False),
            ),
            models.Index(
                fields=["org_slug", "correlation_id"],
                name="jobs_queued_of_correlation",
                condition=Q(state=JobState.QUEUED),
            ),
            # The replays of a job.
            models.Index(
                fields=["replay_of_job_ulid"], name="jobs_replayed", condition=Q(replay_of_job_ulid__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return self.job_ulid

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES

    @property
    def is_held(self) -> bool:
        return self.state in LEASED_STATES

    @property
    def public_status(self) -> str:
        """The public status. The column `status` is stale between a transition and the next read from the database."""
        words = STATUS if self.needs_ingest else STATUS | STATUS_WITHOUT_INGEST
        return words[self.state]

    @property
    def command_line(self) -> str:
        """The command quoted for a shell, for display; empty for types without one."""
        return shlex.join(self.command_json or [])

    def cancel_seconds_left(self, now: datetime) -> float | None:
        if self.cancel_deadline_at is None:
            return None
        return max(0.0, (self.cancel_deadline_at - now).total_seconds())
