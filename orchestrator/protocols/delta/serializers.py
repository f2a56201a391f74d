"""The error envelope of document 001, as schema. `errors.py` builds it."""

from rest_framework import serializers

from orchestrator.http.errors.error_codes import CODES
from orchestrator.protocols.delta.states import CATEGORIES, INTERNAL_ERROR, INVALID_REQUEST, STALE, STALE_LEASE
from runtime_jobs.states import STATUS, STATUS_WITHOUT_INGEST

ERROR_CATEGORIES = [INVALID_REQUEST, *CATEGORIES.values(), STALE_LEASE, INTERNAL_ERROR]


class DeltaErrorDetails(serializers.Serializer):
    """`code` and `request_id` for every error but a stale lease, which has `reason`. The others depend on the code."""

    code = serializers.ChoiceField(choices=list(CODES), required=False, help_text="Error code of the native API.")
    request_id = serializers.CharField(required=False)
    errors = serializers.DictField(  # type: ignore[assignment] # a field here, not the serializer's own attribute
        child=serializers.ListField(child=serializers.CharField()), required=False, help_text="Messages by field."
    )
    reason = serializers.ChoiceField(choices=list(STALE), required=False)
    job_status = serializers.ChoiceField(
        choices=list(dict.fromkeys([*STATUS.values(), *STATUS_WITHOUT_INGEST.values()])), required=False
    )
    limit = serializers.IntegerField(required=False)


class DeltaErrorBody(serializers.Serializer):
    """The member `error` of the envelope."""

    code = serializers.ChoiceField(choices=ERROR_CATEGORIES)
    message = serializers.CharField()
    details = DeltaErrorDetails()
    lease_id = serializers.CharField(required=False, help_text="Only for a stale lease: the id in the request.")


class DeltaError(serializers.Serializer):
    """Error envelope. A stale lease has the members of every form that documents and runners use."""

    error = DeltaErrorBody()
    type = serializers.ChoiceField(choices=["StaleLease"], required=False)
    lease_id = serializers.CharField(required=False)
    reason = serializers.ChoiceField(choices=list(dict.fromkeys(STALE.values())), required=False)
    extend_lease = serializers.BooleanField(required=False)
    stale = serializers.BooleanField(required=False)
    new_lease_ttl_seconds = serializers.IntegerField(required=False)
    cancel_requested = serializers.BooleanField(required=False)
    cancel_deadline_seconds = serializers.IntegerField(required=False)
