"""The fields of `run.v1`, the document that a worker uploads. Lists and strings have maximum lengths."""

import re
from typing import Any

from rest_framework import serializers

from orchestrator.http.api.fields import (
    StrictBooleanField,
    StrictCharField,
    StrictDecimalField,
    StrictIntegerField,
    StrictSerializer,
)
from orchestrator.ingest.presenter import SEVERITIES
from runtime_jobs.identifiers import ULID_PATTERN
from runtime_jobs.models.tenants import JobTrace

BIGINT = 2**63 - 1
SLUG = r"^[a-z0-9][a-z0-9-]{0,62}\Z"
SHA256 = r"^[0-9a-f]{64}\Z"
KINDS_OF_OUTCOME = ("exited", "signaled", "timeout", "exec_failed", "trace_incomplete")
_WITHOUT_USER = re.compile(r"https://[^/@\s]+(?:/[^\s]*)?\Z")


def amount(**options: Any) -> StrictIntegerField:
    """Return a field for a count or size."""
    return StrictIntegerField(min_value=0, max_value=BIGINT, **options)


def optional(kind: type[serializers.Field], **options: Any) -> Any:
    """Return a field that may be missing or null."""
    return kind(required=False, allow_null=True, **options)


def url_error(url: str) -> str | None:
    """Return why an address is refused: it could contain credentials."""
    return None if _WITHOUT_USER.match(url) else "Must be an https address without user name and password."


class Sandbox(StrictSerializer):
    """Sandbox in which the command ran."""

    tool_version = StrictCharField(max_length=100, allow_blank=True)
    allow_network = StrictBooleanField()
    allow_exec = StrictBooleanField()
    timeout_seconds = StrictDecimalField(min_value=0)
    trace_only = StrictBooleanField()
    enforced_layers = serializers.ListField(child=StrictCharField(max_length=63), max_length=32)


class Metadata(StrictSerializer):
    """Identity of the run: job, commit, command, worker and times."""

    org_slug = serializers.RegexField(SLUG)
    project_slug = serializers.RegexField(SLUG)
    repo_url = StrictCharField(max_length=512, check=url_error)
    git_commit = serializers.RegexField(r"^(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")
    command = serializers.ListField(
        child=StrictCharField(allow_blank=True, max_length=1024),
        allow_empty=False,
        max_length=64,
        help_text="As submitted.",
    )
    trigger_kind = serializers.ChoiceField(choices=["manual", "pull_request", "push"])
    worker_id = serializers.RegexField(rf"^wrk_{ULID_PATTERN}\Z")
    job_id = serializers.RegexField(rf"^rtj_{ULID_PATTERN}\Z", help_text="One job has one run.")
    git_ref = optional(StrictCharField, max_length=255)
    pull_request_number = optional(StrictIntegerField, min_value=1, max_value=BIGINT)
    working_directory = optional(StrictCharField, max_length=1024)
    trigger_actor = optional(StrictCharField, max_length=200)
    retry_of_job_id = optional(serializers.RegexField, regex=rf"^rtj_{ULID_PATTERN}\Z")
    sandbox = Sandbox()
    started_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["finished_at"] < attrs["started_at"]:
            raise serializers.ValidationError({"finished_at": "Must not be before `started_at`."})
        return attrs


class RunOutcome(StrictSerializer):
    """End of the command."""

    kind = serializers.ChoiceField(choices=KINDS_OF_OUTCOME)
    exit_code = StrictIntegerField(allow_null=True, min_value=-(2**31), max_value=2**31 - 1)
    signal = StrictCharField(allow_null=True, max_length=20)
    cause = optional(StrictCharField, max_length=40)


class Summary(StrictSerializer):
    """Summary of the traced system calls."""

    timestamp = serializers.DateTimeField()
    total_syscalls = amount()
    unique_syscalls = amount()
    denied_count = amount()
    process_count = amount()
    duration_ms = amount()
    exit_code = StrictIntegerField(min_value=-(2**31), max_value=2**31 - 1)


class Counts(StrictSerializer):
    """Totals, including items that the lists leave out."""

    processes = amount(required=False)
    files_accessed = amount()
    network_attempts = amount()
    suspicious_activity = amount()
    trace_lines = amount()
    bad_lines = amount()


class Process(StrictSerializer):
    """Traced process."""

    pid = StrictIntegerField(min_value=0, max_value=BIGINT)
    parent_pid = optional(StrictIntegerField, min_value=0, max_value=BIGINT)
    is_root = StrictBooleanField()
    exec_count = amount()
    exec_paths = serializers.ListField(child=StrictCharField(max_length=1024), max_length=5)
    command = StrictCharField(required=False, allow_blank=True, max_length=256)
    first_seen = serializers.DateTimeField()
    ended_at = optional(serializers.DateTimeField)
    exit_code = optional(StrictIntegerField, min_value=-(2**31), max_value=2**31 - 1)
    signal = optional(StrictCharField, max_length=20)
    rules = serializers.ListField(child=StrictCharField(max_length=63), max_length=10, required=False)


class File(StrictSerializer):
    """Accessed path with its operations."""

    path = StrictCharField(max_length=1024)
    ops = serializers.ListField(
        child=serializers.ChoiceField(choices=["read", "write", "create", "delete", "rename", "metadata"]), max_length=6
    )
    count = amount()
    failed = amount()
    denied = amount()
    sensitive = StrictBooleanField()
    outside = StrictBooleanField(required=False, help_text="Modification or attempt outside the job's directories.")


class NetworkAttempt(StrictSerializer):
    """Connection attempt, DNS lookup or proxy request."""

    kind = serializers.ChoiceField(choices=["contact", "lookup", "proxied"], required=False)
    addr = StrictCharField(max_length=256)
    family = serializers.ChoiceField(choices=["inet", "inet6", "unix", "other"])
    port = optional(StrictIntegerField, min_value=0, max_value=65535)
    count = amount()
    name = optional(StrictCharField, max_length=256)
    outcome = optional(serializers.ChoiceField, choices=["connected", "in_progress", "failed", "denied"])
    errno = optional(StrictIntegerField, min_value=0, max_value=4095)
    verdict = optional(serializers.ChoiceField, choices=["allowed", "refused", "unreachable"])
    bytes_sent = amount(required=False, allow_null=True)
    bytes_received = amount(required=False, allow_null=True)


class Finding(StrictSerializer):
    """Suspicious action."""

    rule = StrictCharField(max_length=63)
    severity = serializers.ChoiceField(choices=SEVERITIES)
    reason = StrictCharField(max_length=300)
    detail = StrictCharField(max_length=512, allow_blank=True)
    count = amount()


class TruncatedList(StrictSerializer):
    """First `items` of a list of `total`."""

    total = amount()
    truncated = StrictBooleanField()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["total"] < len(attrs["items"]):
            raise serializers.ValidationError({"total": "Must be at least the number of items."})
        return attrs


class Processes(TruncatedList):
    """List of processes."""

    items = serializers.ListField(child=Process(), max_length=200)


class Files(TruncatedList):
    """List of files."""

    items = serializers.ListField(child=File(), max_length=500)


class NetworkAttempts(TruncatedList):
    """List of network attempts."""

    items = serializers.ListField(child=NetworkAttempt(), max_length=200)


class SuspiciousActivity(TruncatedList):
    """List of findings."""

    items = serializers.ListField(child=Finding(), max_length=100)


class Peaks(StrictSerializer):
    """Highest measured use. Null: not measured."""

    memory_bytes = amount(allow_null=True)
    processes = amount(allow_null=True)
    disk_bytes = amount(allow_null=True)
    cpu_seconds = StrictDecimalField(allow_null=True, min_value=0)


class ResourceLimits(StrictSerializer):
    """Limits of the sandbox."""

    memory_bytes = amount()
    processes = amount()
    disk_bytes = amount()
    cpu_percent = amount()
    output_bytes = amount()
    trace_bytes = amount()
    timeout_seconds = StrictDecimalField(min_value=0)


class Output(StrictSerializer):
    """Size of the log."""

    bytes = amount()
    truncated = StrictBooleanField()


class Resources(StrictSerializer):
    """Use and limits of resources."""

    peaks = Peaks()
    limits = ResourceLimits()
    output = Output(required=False)


class Trace(StrictSerializer):
    """Trace file, which stays on the worker."""

    level = serializers.ChoiceField(choices=JobTrace.values, required=False, help_text="What was recorded.")
    sha256 = serializers.RegexField(SHA256)
    bytes = amount()
    truncated = StrictBooleanField()
    confidence = serializers.ChoiceField(choices=["advisory"], required=False)


class RunUpload(StrictSerializer):
    """Run document, version 1."""

    schema_version = serializers.ChoiceField(choices=["run.v1"])
    metadata = Metadata()
    outcome = RunOutcome()
    summary = Summary(allow_null=True)
    counts = Counts()
    processes = Processes()
    files = Files()
    network_attempts = NetworkAttempts()
    suspicious_activity = SuspiciousActivity()
    resources = Resources(required=False)
    trace = Trace(required=False)
    payload_sha256 = serializers.RegexField(
        SHA256,
        required=False,
        help_text="SHA-256 of the canonical JSON (sorted keys, no blanks, UTF-8) without this field.",
    )
