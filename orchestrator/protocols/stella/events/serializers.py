"""Responses of events, for the OpenAPI document. `orchestrator.events.envelopes` builds them."""

from rest_framework import serializers

from runtime_jobs.orchestration_status import STATUS_OF_STATE


class EventChangeOutput(serializers.Serializer):
    """The change that the event reports. Events of operators have `actor` and `details` only."""

    status = serializers.ChoiceField(
        choices=list(dict.fromkeys(map(str, STATUS_OF_STATE.values()))),
        required=False,
        help_text="Status of the job after the event.",
    )
    duration = serializers.FloatField(
        required=False, allow_null=True, help_text="Of an end: seconds since the start. Null: the job never started."
    )
    result = serializers.DictField(
        required=False, allow_null=True, help_text="Of an end: `verdict` and `exitCode`, each null if unknown."
    )
    actor = serializers.CharField(help_text="`kind:id` of the client, operator, worker or server process.")
    details = serializers.DictField(help_text="The recorded details, by event type.")


class EventProvenanceOutput(serializers.Serializer):
    """The worker and its lease."""

    workerId = serializers.CharField(allow_null=True)
    leaseId = serializers.CharField(allow_null=True, help_text="Fingerprint: 16 hex digits of the SHA-256.")
    taskRunnerId = serializers.CharField(allow_null=True, help_text="The worker of a job of type `pack-run`.")


class EventIntegrityOutput(serializers.Serializer):
    """The place of the event in the hash chain of its attempt."""

    attempt = serializers.IntegerField()
    sequence = serializers.IntegerField()
    prevHash = serializers.CharField(allow_null=True, help_text="Null: the first event of the attempt.")
    hash = serializers.CharField()


class EventEnvelopeOutput(serializers.Serializer):
    """An event (document 004, section 6.1). Equal in every stream, page and delivery."""

    eventId = serializers.UUIDField()
    eventType = serializers.CharField()
    timestamp = serializers.DateTimeField()
    tenant = serializers.CharField(allow_null=True, help_text="Null: an event of the whole installation.")
    jobId = serializers.UUIDField(allow_null=True)
    jobType = serializers.CharField(allow_null=True)
    correlationId = serializers.CharField(allow_null=True)
    idempotencyKey = serializers.CharField(help_text="`{attempt}:{sequence}`, or the id of an operator's event.")
    payload = EventChangeOutput()
    provenance = EventProvenanceOutput(allow_null=True)
    integrity = EventIntegrityOutput(allow_null=True)


class EventListOutput(serializers.Serializer):
    """A page of events, the oldest first."""

    next = serializers.URLField(
        allow_null=True,
        help_text="The next page. A page may be short or empty although there is a next one.",
    )
    previous = serializers.URLField(allow_null=True, help_text="Always null.")
    results = EventEnvelopeOutput(many=True)
    place = serializers.CharField(help_text="For `after` of a later call, also when `next` is null.")
