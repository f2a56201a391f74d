"""Views of `/v1/secrets` and `/v1/variables`."""

from collections.abc import Callable
from typing import Any, ClassVar

import django_filters
from django.db.models import F, QuerySet, Value
from django.db.models.functions import Concat
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.core.principals import ClientPrincipal
from orchestrator.http.api.fields import parse
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import invalid_query
from orchestrator.http.auth.callers import cause_of, client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.protocols.native.base_view import OrganizationViewSet
from orchestrator.protocols.native.secrets import openapi, serializers
from orchestrator.protocols.native.secrets.wire import serialize_secret, serialize_variable
from orchestrator.secrets.operations import delete_secret, delete_variable, set_secret, set_variable
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Organization, Repository, Secret, Variable
from runtime_jobs.models.secrets import NAME_PATTERN, ScopedValue
from runtime_jobs.models.tenants import Scope

NO_SCOPE = "There is no such organization or repository, or you may not see it."


class ScopedValueFilters(django_filters.FilterSet):
    """Filters of `GET /v1/secrets` and `GET /v1/variables`."""

    org_slug = django_filters.CharFilter(field_name="organization__slug")
    repository = django_filters.CharFilter(method="of_repository")

    def of_repository(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        """Return the rows of one repository, without those of its organization."""
        full_name = Concat(F("repository__owner"), Value("/"), F("repository__name"))
        return rows.annotate(full_name=full_name).filter(full_name__iexact=value)


class ScopedValueViewSet(OrganizationViewSet):
    """Named values of the organizations that the caller may see."""

    model: ClassVar[type[ScopedValue]]
    lookup_field = "name"
    lookup_value_regex = NAME_PATTERN
    http_method_names = ["get", "head", "put", "delete"]
    filterset_class = ScopedValueFilters
    parameters = {"destroy": frozenset({"org_slug", "repository"})}

    def get_permissions(self) -> list[Any]:
        return [HasScope(Scope.SECRETS_WRITE)]

    def all_rows(self) -> QuerySet[Any]:
        rows: QuerySet[Any] = self.model._default_manager.select_related("organization", "repository")  # noqa: SLF001 Django's name
        return rows

    def _set(
        self, request: Request, name: str, serializer: Any, act: Callable[..., Any], serialize: Callable[..., Any]
    ) -> Response:
        validated = parse(serializer, body_of(request))
        scope = _find_scope(client_of(request), validated["org_slug"], validated["repository"])
        row, is_new = act(name=name, value=validated["value"], **scope, cause=cause_of(request))
        return Response(serialize(row), status=201 if is_new else 200)

    def _delete(self, request: Request, name: str, act: Callable[..., None]) -> Response:
        query = serializers.ScopeInput(data=request.query_params.dict())
        if not query.is_valid():
            wrong = next(iter(query.errors))
            raise invalid_query(wrong, "; ".join(str(text) for text in query.errors[wrong]))
        scope = _find_scope(client_of(request), query.validated_data["org_slug"], query.validated_data["repository"])
        act(name=name, **scope, cause=cause_of(request))
        return Response(status=204)


class SecretViewSet(ScopedValueViewSet):
    """Secrets. No response contains a value."""

    model = Secret

    @openapi.LIST_SECRETS
    def list(self, request: Request) -> Response:
        """List secrets, newest first, without their values."""
        return self.list_rows(serialize_secret)

    @openapi.SET_SECRET
    def update(self, request: Request, name: str) -> Response:
        """Set a secret of an organization or repository. Jobs that are claimed later receive it."""
        return self._set(request, name, serializers.SecretInput, set_secret, serialize_secret)

    @openapi.DELETE_SECRET
    def destroy(self, request: Request, name: str) -> Response:
        """Delete a secret. Jobs that run keep it, and it stays masked in their logs."""
        return self._delete(request, name, delete_secret)


class VariableViewSet(ScopedValueViewSet):
    """Variables, with their values."""

    model = Variable

    @openapi.LIST_VARIABLES
    def list(self, request: Request) -> Response:
        """List variables, newest first."""
        return self.list_rows(serialize_variable)

    @openapi.SET_VARIABLE
    def update(self, request: Request, name: str) -> Response:
        """Set a variable of an organization or repository. Jobs that are claimed later receive it."""
        return self._set(request, name, serializers.VariableInput, set_variable, serialize_variable)

    @openapi.DELETE_VARIABLE
    def destroy(self, request: Request, name: str) -> Response:
        """Delete a variable."""
        return self._delete(request, name, delete_variable)


def _find_scope(caller: ClientPrincipal, org_slug: str, repository: str | None) -> dict[str, Any]:
    """Return the organization and repository that a request names.

    Raises:
        NotFound: One of them does not exist, or the caller may not see it.
    """
    organization = Organization.objects.filter(slug=org_slug).first() if caller.sees(org_slug) else None
    if organization is None:
        raise NotFound(NO_SCOPE)
    if repository is None:
        return {"organization": organization, "repository": None}
    owner, _, name = repository.partition("/")
    rows = Repository.objects.select_related("project").filter(project__organization=organization)
    found = rows.filter(owner__iexact=owner, name__iexact=name).first()
    if found is None:
        raise NotFound(NO_SCOPE)
    return {"organization": organization, "repository": found}
