"""The shapes of answers, for OpenAPI. What is sent is made in `wire`."""

from rest_framework import serializers

from leases.models import LimitKind, LimitScope
from orchestrator.http.api.spec_serializers import AnySpec
from orchestrator.protocols.native.requests import Progress
from orchestrator.selectors.pending_reasons.reason import ReasonCode
from runtime_jobs.models import FailureExplanation
from runtime_jobs.models.tenants import ISOLATION_CHOICES
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.states import (
    STATUS,
    STATUS_WITHOUT_INGEST,
    TRIGGER_KINDS,
    CancelReason,
    FailureClass,
    FailureReason,
    JobState,
)

STATUSES = list(dict.fromkeys(STATUS.values()))
ALL_STATUSES = [*STATUSES, *STATUS_WITHOUT_INGEST.values()]
END_REASONS = [*FailureReason.values, *(word for word in CancelReason.values if word not in FailureReason.values)]
EVENT_TYPES = [
    *(
        "job.queued",
        "job.blocked",
        "job.unblocked",
        "job.leased",
        "job.started",
        "job.progress",
        "job.requeued",
        "job.cancel_requested",
        "job.prioritized",
    ),
    *("job.canceled", "job.completed", "job.failed", "job.retried"),
    *("lease.expired", "lease.revoked", "lease.released"),
]
ACTOR_KINDS = ["client", "operator", "worker", "clock", "core"]


class SourceShown(serializers.Serializer):
    kind = serializers.ChoiceField(choices=["github"])
    repo_url = serializers.CharField()
    owner = serializers.CharField()
    repo = serializers.CharField()
    ref = serializers.CharField(allow_null=True)
    git_commit = serializers.CharField()
    pull_request_number = serializers.IntegerField(allow_null=True)


class ExecutionShown(serializers.Serializer):
    working_directory = serializers.CharField()
    command = serializers.ListField(child=serializers.CharField())
    timeout_seconds = serializers.IntegerField()
    allow_network = serializers.BooleanField()
    allow_exec = serializers.BooleanField()


class TriggerShown(serializers.Serializer):
    kind = serializers.ChoiceField(choices=TRIGGER_KINDS)
    actor = serializers.CharField(allow_null=True)


class FailureShown(serializers.Serializer):
    reason = serializers.ChoiceField(choices=END_REASONS)
    # A Python keyword as a field's name has to come in by the back door.
    locals()["class"] = serializers.ChoiceField(choices=FailureClass.choices, allow_null=True)
    message = serializers.CharField()


class ActorShown(serializers.Serializer):
    kind = serializers.ChoiceField(choices=ACTOR_KINDS)
    id = serializers.CharField()


class EventShown(serializers.Serializer):
    event_id = serializers.CharField()
    seq = serializers.IntegerField()
    event_type = serializers.ChoiceField(choices=EVENT_TYPES)
    created_at = serializers.DateTimeField()
    actor = ActorShown()
    worker_id = serializers.CharField(allow_null=True)
    from_state = serializers.ChoiceField(choices=JobState.choices, allow_null=True)
    to_state = serializers.ChoiceField(choices=JobState.choices, allow_null=True)
    fence = serializers.IntegerField()
    payload = serializers.DictField()
    hash = serializers.CharField()


class EventsShown(serializers.Serializer):
    results = EventShown(many=True)
    next_after = serializers.IntegerField(allow_null=True, help_text="Pass as `after` for the rest.")


class _Job(serializers.Serializer):
    job_id = serializers.CharField()
    state = serializers.ChoiceField(choices=JobState.choices)
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    org_slug = serializers.CharField()
    project_slug = serializers.CharField()
    trigger = TriggerShown()
    pool = serializers.CharField()
    priority = serializers.IntegerField(help_text="Higher goes first: low is 50, normal 150, high 250, emergency 400.")
    concurrency_key = serializers.CharField(allow_null=True)
    attempt = serializers.IntegerField()
    retry_of = serializers.CharField(allow_null=True)
    root_job_id = serializers.CharField()
    cancel_requested = serializers.BooleanField()
    ingest_run_id = serializers.CharField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    failure = FailureShown(allow_null=True)
    correlation_id = serializers.CharField()


class LogCursorShown(serializers.Serializer):
    bytes_sent = serializers.IntegerField()


class ProgressShown(Progress):
    log_cursor = LogCursorShown(required=False, help_text="How much of its log a runner has stored elsewhere.")


class ArtifactShown(serializers.Serializer):
    """Where something lies, as the worker says. Nobody has looked: do not follow it blindly."""

    artifact_id = serializers.CharField()
    type = serializers.CharField()
    uri = serializers.CharField()
    created_at = serializers.DateTimeField()


class ExplanationShown(serializers.Serializer):
    """A guess at why the command failed."""

    category = serializers.ChoiceField(choices=FailureExplanation.Category.choices)
    confidence = serializers.ChoiceField(choices=FailureExplanation.Confidence.choices)
    summary = serializers.CharField()
    details = serializers.CharField()


class MissingShown(serializers.Serializer):
    kind = serializers.ChoiceField(choices=["requirement", "isolation", "job_type"])
    name = serializers.CharField()


class LimitHit(serializers.Serializer):
    kind = serializers.ChoiceField(choices=LimitKind.choices)
    scope = serializers.ChoiceField(choices=LimitScope.choices)
    key = serializers.CharField()
    max_active = serializers.IntegerField(allow_null=True)
    per_hour = serializers.IntegerField(allow_null=True)


class PendingReason(serializers.Serializer):
    """Why it waits. Besides code and message only the facts that belong to the code."""

    code = serializers.ChoiceField(choices=ReasonCode.choices)
    message = serializers.CharField(help_text="One sentence for people; it may change.")
    depends_on = serializers.ListField(child=serializers.CharField(), required=False, help_text="Not ended yet.")
    pool = serializers.CharField(required=False)
    workers_alive = serializers.IntegerField(required=False)
    missing = MissingShown(many=True, required=False, help_text="What the nearest worker lacks.")
    position = serializers.IntegerField(required=False)
    limit = LimitHit(required=False)
    next_at = serializers.DateTimeField(required=False, allow_null=True, help_text="When it changes by itself.")
    paused_by = serializers.CharField(required=False)
    paused_until = serializers.DateTimeField(required=False, allow_null=True)
    note = serializers.CharField(required=False)


class _Waiting(serializers.Serializer):
    queue_position = serializers.IntegerField(allow_null=True, help_text="1 is next; at most 1000 are counted.")
    pending_reason = PendingReason(allow_null=True)


class _Details(_Waiting):
    progress = ProgressShown(allow_null=True)
    last_event = EventShown(allow_null=True)
    depends_on = serializers.ListField(child=serializers.CharField(), help_text="The first attempts.")
    retries = serializers.ListField(child=serializers.CharField())
    artifacts = ArtifactShown(many=True)
    explanation = ExplanationShown(allow_null=True)


class JobShown(_Job):
    status = serializers.ChoiceField(choices=STATUSES)
    source = SourceShown()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
    execution = ExecutionShown()


class JobListed(_Waiting, JobShown):
    pass


class JobInDetail(_Details, JobShown):
    pass


class AnyJobShown(_Job):
    status = serializers.ChoiceField(choices=ALL_STATUSES)
    job_type = serializers.ChoiceField(choices=list(JOB_TYPES))
    spec = AnySpec(help_text="As it was submitted.")
    batch_id = serializers.CharField(allow_null=True)
    result = serializers.DictField(allow_null=True, help_text="What its worker told of it.")


class AnyJobListed(_Waiting, AnyJobShown):
    pass


class AnyJobInDetail(_Details, AnyJobShown):
    pass


class ExecutionLeased(ExecutionShown):
    least_isolation = serializers.ChoiceField(choices=ISOLATION_CHOICES)
    egress = serializers.ListField(child=serializers.CharField())


class PatternShown(serializers.Serializer):
    type = serializers.CharField()
    path_glob = serializers.CharField()


class CacheShown(serializers.Serializer):
    type = serializers.CharField()
    key = serializers.CharField()
    paths = serializers.ListField(child=serializers.CharField())
    read_only = serializers.BooleanField()  # type: ignore[assignment] # a field here, as `source` above


class StepsLeased(serializers.Serializer):
    name = serializers.CharField()
    steps = serializers.ListField(child=serializers.CharField())
    working_directory = serializers.CharField()
    environment = serializers.DictField(child=serializers.CharField(allow_blank=True))
    artifacts = PatternShown(many=True)
    caches = CacheShown(many=True)
    image = serializers.CharField(allow_null=True)
    timeout_seconds = serializers.IntegerField()
    allow_network = serializers.BooleanField()
    least_isolation = serializers.ChoiceField(choices=ISOLATION_CHOICES)
    egress = serializers.ListField(child=serializers.CharField())


class JobLeased(serializers.Serializer):
    job_id = serializers.CharField()
    org_slug = serializers.CharField()
    project_slug = serializers.CharField()
    job_type = serializers.ChoiceField(choices=list(JOB_TYPES))
    source = SourceShown(allow_null=True)  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
    execution = ExecutionLeased(required=False, help_text="Of type runtime.")
    steps = StepsLeased(required=False, help_text="Of type steps.")
    trigger = TriggerShown()
    attempt = serializers.IntegerField()
    retry_of = serializers.CharField(allow_null=True)
    fence = serializers.IntegerField()
    heartbeat_interval_seconds = serializers.IntegerField()
    lease_ttl_seconds = serializers.IntegerField()
    acknowledge_within_seconds = serializers.IntegerField()
    unsent_run = serializers.DictField(required=False, help_text="Upload this run; execute nothing.")


class LeaseShown(serializers.Serializer):
    lease_id = serializers.CharField()
    job = JobLeased()
    lease_expires_at = serializers.DateTimeField()


class LeasesShown(serializers.Serializer):
    leases = LeaseShown(many=True)


class Told(serializers.Serializer):
    job_id = serializers.CharField()
    status = serializers.ChoiceField(choices=ALL_STATUSES)


class RenewedShown(Told):
    lease_expires_at = serializers.DateTimeField()
    cancel_requested = serializers.BooleanField()
    cancel_reason = serializers.CharField(allow_null=True)
    cancel_deadline_seconds = serializers.FloatField(allow_null=True)


class ChunkTaken(serializers.Serializer):
    next_seq = serializers.IntegerField()
    truncated = serializers.BooleanField(help_text="The log is full; this chunk was dropped.")
