"""Views of `/v1/webhooks` and of the deliveries of a webhook."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.core.datetimes import TimestampFilter
from orchestrator.http.api.fields import parse
from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.auth.callers import cause_of, client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.protocols.native.base_view import OrganizationViewSet, created_response
from orchestrator.protocols.native.organizations import visible_organization
from orchestrator.protocols.native.serializers import EmptyBody
from orchestrator.protocols.native.webhooks import openapi, serializers, wire
from orchestrator.webhooks import deliveries
from orchestrator.webhooks.endpoints import check_endpoint
from orchestrator.webhooks.models import Delivery, DeliveryStatus, Webhook, WebhookStatus
from orchestrator.webhooks.operations import (
    NO_WEBHOOK,
    WebhookTerms,
    change_webhook,
    create_webhook,
    delete_webhook,
    rotate_webhook_key,
    webhook_secret,
)
from runtime_jobs.errors import NotFound
from runtime_jobs.event_types import DELIVERED_TYPES
from runtime_jobs.models.tenants import Scope
from runtime_jobs.specs import JOB_TYPES

TRIES_DISPLAYED = 50


class WebhookFilters(django_filters.FilterSet):
    """Filters of `GET /v1/webhooks`."""

    org_slug = django_filters.CharFilter(field_name="organization__slug")
    status = django_filters.ChoiceFilter(choices=[(str(one), str(one)) for one in serializers.DISPLAYED])

    class Meta:
        model = Webhook
        fields: list[str] = []


class DeliveryFilters(django_filters.FilterSet):
    """Filters of the deliveries of a webhook."""

    status = django_filters.ChoiceFilter(choices=DeliveryStatus.choices)
    event_type = django_filters.ChoiceFilter(choices=[(name, name) for name in DELIVERED_TYPES])
    job_type = django_filters.ChoiceFilter(choices=[(name, name) for name in JOB_TYPES])
    created_after = TimestampFilter(field_name="created_at", lookup_expr="gt")
    created_before = TimestampFilter(field_name="created_at", lookup_expr="lt")

    class Meta:
        model = Delivery
        fields: list[str] = []


class _OwnWebhooks(OrganizationViewSet):
    """Base of views of the webhooks that the caller may see. All of them need the scope to operate."""

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.ORCH_OPERATE)]

    def all_rows(self) -> QuerySet[Any]:
        return Webhook.objects.select_related("organization").exclude(status=WebhookStatus.DELETED)


class WebhookViewSet(_OwnWebhooks):
    """Webhooks of the organizations that the caller may see."""

    lookup_field = "webhook_ulid"
    lookup_url_kwarg = "webhook_id"
    lookup_value_regex = openapi.WEBHOOK_ID_PATTERN
    http_method_names = ["get", "head", "post", "patch", "delete"]
    filterset_class = WebhookFilters
    missing = NO_WEBHOOK

    @openapi.LIST_WEBHOOKS
    def list(self, request: Request) -> Response:
        """List webhooks, newest first, without their secrets."""
        return self.list_rows(wire.serialize_webhook)

    @openapi.GET_WEBHOOK
    def retrieve(self, request: Request, webhook_id: str) -> Response:
        """Return a webhook without its secret."""
        return Response(wire.serialize_webhook(self.own_row(webhook_id)))

    @openapi.CREATE_WEBHOOK
    def create(self, request: Request) -> Response:
        """Create a webhook. The response is the only one with its secret. Events that occur later are sent to it."""
        terms = dict(parse(serializers.WebhookInput, body_of(request)))
        organization = visible_organization(client_of(request), terms.pop("org_slug"))
        terms["url"] = check_endpoint(terms["url"])
        webhook, is_new = create_webhook(
            organization=organization,
            terms=WebhookTerms(**terms),
            idempotency=idempotent_request(request, "create webhook", body_of(request)),
            cause=cause_of(request),
        )
        is_first_secret = webhook.former_secret_until is None
        created = _with_secret(webhook) if is_first_secret else wire.serialize_webhook(webhook) | {"secret": None}
        return created_response(created, f"/v1/webhooks/{webhook.webhook_ulid}", is_new=is_new)

    @openapi.CHANGE_WEBHOOK
    def partial_update(self, request: Request, webhook_id: str) -> Response:
        """Change a webhook. With status `active` it is tried as if it had never failed."""
        changes = dict(parse(serializers.ChangeWebhookInput, body_of(request)))
        self.own_row(webhook_id)
        if "url" in changes:
            changes["url"] = check_endpoint(changes["url"])
        webhook = change_webhook(webhook_ulid=webhook_id, changes=changes, cause=cause_of(request))
        return Response(wire.serialize_webhook(webhook))

    @openapi.DELETE_WEBHOOK
    def destroy(self, request: Request, webhook_id: str) -> Response:
        """Delete a webhook with its notification rules. Nothing more is sent to it."""
        self.own_row(webhook_id)
        delete_webhook(webhook_ulid=webhook_id, cause=cause_of(request))
        return Response(status=204)

    @openapi.ROTATE_SECRET
    @action(detail=True, methods=["post"], url_path="rotate-secret")
    def rotate_secret(self, request: Request, webhook_id: str) -> Response:
        """Give the webhook a new secret, and return it. For 24 hours deliveries have the signature of both."""
        _require_empty(request)
        self.own_row(webhook_id)
        return Response(_with_secret(rotate_webhook_key(webhook_ulid=webhook_id, cause=cause_of(request))))

    @openapi.TEST_WEBHOOK
    @action(detail=True, methods=["post"])
    def test(self, request: Request, webhook_id: str) -> Response:
        """Send an event of the type `webhook.test`, whatever the filters of the webhook are."""
        _require_empty(request)
        self.own_row(webhook_id)
        delivery = deliveries.send_test(webhook_ulid=webhook_id, cause=cause_of(request))
        return Response(wire.serialize_delivery(delivery), status=202)

    @openapi.REDELIVER_MANY
    @action(detail=True, methods=["post"])
    def redeliver(self, request: Request, webhook_id: str) -> Response:
        """Send the dead letters again, or all deliveries since a time, each under its former id."""
        since = parse(serializers.RedeliverInput, body_of(request))["since"]
        self.own_row(webhook_id)
        result = deliveries.redeliver_many(webhook_ulid=webhook_id, since=since, cause=cause_of(request))
        return Response(wire.serialize_redelivered(result), status=202)


class DeliveryViewSet(_OwnWebhooks):
    """Deliveries of one webhook."""

    lookup_field = "delivery_ulid"
    lookup_url_kwarg = "delivery_id"
    lookup_value_regex = openapi.DELIVERY_ID_PATTERN
    http_method_names = ["get", "head", "post"]
    filterset_class = DeliveryFilters
    missing = "The webhook has no such delivery, or you may not see it."

    def get_queryset(self) -> QuerySet[Delivery]:
        if getattr(self, "swagger_fake_view", False):
            return Delivery.objects.none()
        webhook = super().get_queryset().filter(webhook_ulid=self.kwargs["webhook_id"]).first()
        if webhook is None:
            raise NotFound(NO_WEBHOOK)
        return Delivery.objects.filter(webhook=webhook)

    @openapi.LIST_DELIVERIES
    def list(self, request: Request, webhook_id: str) -> Response:
        """List the deliveries of a webhook, newest first."""
        return self.page_of(self.filter_queryset(self.get_queryset().defer("body")), wire.serialize_delivery)

    @openapi.GET_DELIVERY
    def retrieve(self, request: Request, webhook_id: str, delivery_id: str) -> Response:
        """Return a delivery with its body and its last tries."""
        delivery = self.own_row(delivery_id)
        tries = delivery.all_tries.order_by("-number")[:TRIES_DISPLAYED]
        return Response(wire.serialize_delivery_detail(delivery, list(tries)))

    @openapi.REDELIVER
    @action(detail=True, methods=["post"])
    def redeliver(self, request: Request, webhook_id: str, delivery_id: str) -> Response:
        """Send a delivery again that has ended, under the same id and with the same body."""
        _require_empty(request)
        self.own_row(delivery_id)
        delivery = deliveries.redeliver(webhook_ulid=webhook_id, delivery_ulid=delivery_id, cause=cause_of(request))
        return Response(wire.serialize_delivery(delivery), status=202)


def _with_secret(webhook: Webhook) -> dict[str, Any]:
    return wire.serialize_webhook(webhook) | {"secret": webhook_secret(webhook)}


def _require_empty(request: Request) -> None:
    parse(EmptyBody, body_of(request))
