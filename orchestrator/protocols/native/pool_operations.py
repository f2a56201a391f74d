"""What the OpenAPI document says of the operations on pools: shapes, examples, codes."""

from drf_spectacular.utils import OpenApiParameter, extend_schema_view
from rest_framework import serializers

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.native.examples import answered
from orchestrator.protocols.native.requests import SLUG
from runtime_jobs.models.tenants import ISOLATION_CHOICES
from workers.registry.models import PoolPolicy


class PoolShown(serializers.Serializer):
    pool = serializers.CharField()
    description = serializers.CharField()
    policy = serializers.ChoiceField(choices=PoolPolicy.values)
    aging = serializers.BooleanField(help_text="Waiting raises the priority of a job. False: strict order.")
    least_isolation = serializers.ChoiceField(choices=ISOLATION_CHOICES)


class CrewShown(serializers.Serializer):
    active = serializers.IntegerField(help_text="Heard within the last minute.")
    silent = serializers.IntegerField(help_text="Active, and not heard for more than a minute.")
    draining = serializers.IntegerField()
    maintenance = serializers.IntegerField()


class LoadShown(serializers.Serializer):
    pool = serializers.CharField()
    queued = serializers.IntegerField(help_text="All that wait; at most 10000 are counted.")
    servable = serializers.IntegerField(help_text="Of these, what no limit or pause holds back; counted as far.")
    capped = serializers.BooleanField(help_text="More wait than are counted.")
    running = serializers.IntegerField()
    idle_slots = serializers.IntegerField(help_text="Room for jobs at active workers.")
    workers = CrewShown()
    oldest_wait_seconds = serializers.FloatField(help_text="0: nothing waits.")
    starts_per_minute = serializers.IntegerField(help_text="In the last minute; of at most 20000 starts in all pools.")
    at = serializers.DateTimeField(help_text="The database's clock.")


_POOL = {
    "pool": "shared-linux",
    "description": "For everybody",
    "policy": "fair",
    "aging": True,
    "least_isolation": "namespaces",
}
_LOAD = {
    "pool": "shared-linux",
    "queued": 42,
    "servable": 40,
    "capped": False,
    "running": 8,
    "idle_slots": 0,
    "workers": {"active": 4, "silent": 1, "draining": 0, "maintenance": 0},
    "oldest_wait_seconds": 12.5,
    "starts_per_minute": 31,
    "at": "2026-03-17T20:03:20Z",
}
NAME = OpenApiParameter(
    "pool", {"type": "string", "pattern": f"^{SLUG}$", "maxLength": 63}, OpenApiParameter.PATH, required=True
)
POOL = answered("a shared pool", _POOL)

OF_POOLS = extend_schema_view(
    list=operation_docs("list_pools", responses=PoolShown(many=True), examples=[POOL]),
    load=operation_docs(
        "get_pool_load",
        responses=LoadShown,
        parameters=[NAME],
        examples=[answered("more to do than workers", _LOAD)],
        codes=("not_found",),
    ),
)
