"""The shapes of answers to calls for many, for OpenAPI: a result for each entry."""

from rest_framework import serializers

from orchestrator.http.api.openapi import Problem
from orchestrator.protocols.native.answers import AnyJobShown, JobShown, RenewedShown, Told


class _Refused(serializers.Serializer):
    """`body` with status 200 or 201, else `error`."""

    status = serializers.IntegerField()
    error = Problem(required=False)


class _OfALease(_Refused):
    lease_id = serializers.CharField()


class ToldResult(_OfALease):
    body = Told(required=False)


class RenewedResult(_OfALease):
    body = RenewedShown(required=False)


class JobResult(_Refused):
    body = JobShown(required=False)


class AnyJobResult(_Refused):
    body = AnyJobShown(required=False)


class ToldResults(serializers.Serializer):
    """In the order in which the leases were sent."""

    results = ToldResult(many=True)


class RenewedResults(serializers.Serializer):
    """In the order in which the leases were sent."""

    results = RenewedResult(many=True)


class JobResults(serializers.Serializer):
    """In the order in which the jobs were sent."""

    results = JobResult(many=True)


class AnyJobResults(serializers.Serializer):
    """In the order in which the jobs were sent."""

    results = AnyJobResult(many=True)
