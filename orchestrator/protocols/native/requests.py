"""What callers may send, field by field, with the limits of document 000 and `docs/api.md`."""

import base64
import binascii
from typing import Any

from django.conf import settings
from rest_framework import serializers

from orchestrator.access.fields import Decimal, Flag, Message, Moment, Number, StrictSerializer, Text, Word
from runtime_jobs import sources
from runtime_jobs.specs import RUNTIME, RuntimeSpec
from runtime_jobs.states import REPORTABLE_FAILURES, RUNNING

CHUNK_LIMIT = 512 * 1024
BIGINT = 2**63 - 1
TRIGGER_KINDS = ["manual", "pull_request"]
SLUG = "[a-z0-9][a-z0-9-]{0,62}"


class Source(StrictSerializer):
    kind = Word(choices=["github"])
    repo_url = Text(max_length=512, help_text="https://HOST/OWNER/REPO, with or without .git")
    owner = Text(pattern=sources.NAME.pattern, check=sources.wrong_name)
    repo = Text(pattern=sources.NAME.pattern, check=sources.wrong_name)
    ref = Text(required=False, allow_null=True, default=None, max_length=255, check=sources.wrong_ref)
    git_commit = Text(pattern=f"({sources.COMMIT.pattern})", check=sources.wrong_commit)
    pull_request_number = Number(required=False, allow_null=True, default=None, min_value=1, max_value=BIGINT)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        wrong = sources.wrong_repo_url(
            attrs["repo_url"], owner=attrs["owner"], repo=attrs["repo"], hosts=settings.REPOSITORY_HOSTS
        )
        if wrong:
            raise serializers.ValidationError({"repo_url": wrong})
        return attrs


class Execution(StrictSerializer):
    working_directory = Text(required=False, default=".", max_length=1024, check=sources.wrong_directory)
    command = serializers.ListField(child=Text(allow_blank=True, max_length=1024), allow_empty=False, max_length=64)
    timeout_seconds = Number(min_value=1, max_value=2**31 - 1)
    allow_network = Flag(required=False, default=False)
    allow_exec = Flag(required=False, default=True)

    def validate_command(self, command: list[str]) -> list[str]:
        if wrong := sources.wrong_command(command):
            raise serializers.ValidationError(wrong)
        return command


class Trigger(StrictSerializer):
    kind = Word(choices=TRIGGER_KINDS)
    actor = Text(required=False, allow_null=True, default=None, max_length=200)


class SubmitJob(StrictSerializer):
    """POST /v1/runtime/jobs."""

    org_slug = Text(pattern=SLUG)
    project_slug = Text(pattern=SLUG)
    source = Source()  # type: ignore[assignment] # a field here, not the attribute of DRF's fields
    execution = Execution()
    trigger = Trigger()

    def spec(self) -> RuntimeSpec:
        source, execution = self.validated_data["source"], self.validated_data["execution"]
        return RuntimeSpec(
            repo_url=source["repo_url"],
            owner=source["owner"],
            repo=source["repo"],
            ref=source["ref"],
            git_commit=source["git_commit"],
            pull_request_number=source["pull_request_number"],
            working_directory=execution["working_directory"],
            command=tuple(execution["command"]),
            timeout_seconds=execution["timeout_seconds"],
            allow_network=execution["allow_network"],
            allow_exec=execution["allow_exec"],
        )


class CancelJob(StrictSerializer):
    reason = Message(required=False, default="", allow_blank=True, max_length=1000)


class RetryJob(StrictSerializer):
    reason = Message(max_length=1000)


class Claim(StrictSerializer):
    """POST /v1/runtime/leases."""

    worker_id = Text(max_length=64)
    pool = Text(pattern=SLUG, required=False, default=None, allow_null=True)
    capabilities = serializers.DictField(child=Flag(), required=False, default=None, allow_null=True)
    labels = serializers.ListField(child=Text(max_length=63), required=False, default=None, max_length=64)
    job_types = serializers.ListField(
        child=Text(max_length=50), required=False, default=lambda: [RUNTIME], allow_empty=False, max_length=16
    )
    wait_seconds = Decimal(required=False, default=0, min_value=0, max_value=60)
    acknowledge = Flag(required=False, default=False)

    def validate_capabilities(self, offered: dict[str, bool] | None) -> dict[str, bool] | None:
        if offered is not None and (len(offered) > 64 or any(len(name) > 63 for name in offered)):
            raise serializers.ValidationError("At most 64, with names of at most 63 characters.")
        return offered


class Progress(StrictSerializer):
    percent = Decimal(required=False, min_value=0, max_value=100)
    current_step = Message(required=False, allow_blank=True, max_length=200)
    step_index = Number(required=False, min_value=0, max_value=100_000)
    message = Message(required=False, allow_blank=True, max_length=1000)


class Heartbeat(StrictSerializer):
    phase = Word(choices=[str(state) for state in RUNNING], required=False, default=None)
    progress = Progress(required=False, default=None)


class Report(StrictSerializer):
    phase = Word(choices=[str(state) for state in RUNNING])


class LogChunk(StrictSerializer):
    step = Number(required=False, default=0, min_value=0, max_value=100_000)
    seq = Number(min_value=0, max_value=2**31 - 1)
    chunk = Text(allow_blank=True, help_text="Base64; at most 512 KiB raw.")

    def validate_chunk(self, text: str) -> bytes:
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise serializers.ValidationError("This is not base64.") from None
        if len(raw) > CHUNK_LIMIT:
            raise serializers.ValidationError("At most 512 KiB.")
        return raw


class Uploaded(StrictSerializer):
    status = Word(choices=["uploaded"])
    ingest_run_id = Text(pattern="[A-Za-z0-9_-]{1,64}")
    uploaded_at = Moment(required=False, help_text="Checked, not kept: times are the server's.")
    exit_code = Number(required=False, default=None, allow_null=True, min_value=-(2**31), max_value=2**31 - 1)
    counts = serializers.DictField(child=Number(min_value=0, max_value=BIGINT), required=False, default=None)


class Complete(StrictSerializer):
    result = Uploaded()


class Failed(StrictSerializer):
    status = Word(choices=["failed"])
    reason = Word(choices=sorted(REPORTABLE_FAILURES))
    message = Message(required=False, default="", allow_blank=True, max_length=65_536)
    exit_code = Number(required=False, default=None, allow_null=True, min_value=-(2**31), max_value=2**31 - 1)
    payload = serializers.DictField(
        required=False, default=None, help_text="With upload_failed: the run that could not be uploaded."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["payload"] is not None and attrs["reason"] != "upload_failed":
            raise serializers.ValidationError({"payload": "Only with upload_failed."})
        return attrs


class Fail(StrictSerializer):
    result = Failed()


class AcknowledgeCancel(StrictSerializer):
    message = Message(required=False, default="", allow_blank=True, max_length=4096)


class Release(StrictSerializer):
    message = Message(required=False, default="", allow_blank=True, max_length=4096)
    unable = Flag(required=False, default=False, help_text="This machine cannot run it; do not offer it again.")


class Nothing(StrictSerializer):
    """A body without fields."""
