"""Views of `/v0/specs` (contract 2.9). All are for server admins."""

from django.db.models import Q, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.api.json_parser import body_of
from orchestrator.protocols.bencher.base_view import BencherView, list_response
from orchestrator.protocols.bencher.lists import contains, paginate, query_boolean, query_name, query_value
from orchestrator.protocols.bencher.resource_ids import parse_resource_id, row_filter
from orchestrator.protocols.bencher.specs import openapi
from orchestrator.protocols.bencher.specs.serializers import NewSpecInput, SpecChangeInput
from orchestrator.protocols.bencher.specs.wire import spec_document
from orchestrator.services import hardware_specs
from runtime_jobs.errors import NotFound
from workers.models import HardwareSpec


def find_spec(text: str) -> HardwareSpec:
    """Return the spec that a UUID or slug names, archived or not.

    Raises:
        ApiError: 400; the text is neither.
        NotFound: There is no such spec.
    """
    spec = HardwareSpec.objects.filter(**row_filter(parse_resource_id(text, "spec"))).first()
    if spec is None:
        raise NotFound(f"There is no spec {text}.")
    return spec


class SpecListView(BencherView):
    """`/v0/specs`."""

    @openapi.LIST_SPECS_DOCS
    def get(self, request: Request) -> Response:
        """List the specs by name. Archived ones are left out by default."""
        page = paginate(request, _filtered(request))
        return list_response([spec_document(spec) for spec in page.rows], page.total)

    @openapi.CREATE_SPEC_DOCS
    def post(self, request: Request) -> Response:
        """Create a spec. A slug that is taken gets a random suffix."""
        given = NewSpecInput(data=body_of(request))
        given.is_valid(raise_exception=True)
        values = given.validated_data
        spec = hardware_specs.create_spec(
            name=values["name"],
            slug=values.get("slug"),
            hardware=given.hardware(),
            fallback=values.get("fallback", False),
            cause=self.cause_of(request),
        )
        return Response(spec_document(spec), status=201)


class SpecDetailView(BencherView):
    """`/v0/specs/{spec}`."""

    @openapi.GET_SPEC_DOCS
    def get(self, request: Request, spec: str) -> Response:
        """Return a spec, archived or not."""
        return Response(spec_document(find_spec(spec)))

    @openapi.CHANGE_SPEC_DOCS
    def patch(self, request: Request, spec: str) -> Response:
        """Rename, archive or restore a spec, or make it the fallback."""
        change = SpecChangeInput(data=body_of(request))
        change.is_valid(raise_exception=True)
        changed = hardware_specs.change_spec(
            spec_uuid=find_spec(spec).uuid, **change.validated_data, cause=self.cause_of(request)
        )
        return Response(spec_document(changed))

    @openapi.DELETE_SPEC_DOCS
    def delete(self, request: Request, spec: str) -> Response:
        """Delete a spec to which no runner and no job refers."""
        hardware_specs.delete_spec(spec_uuid=find_spec(spec).uuid, cause=self.cause_of(request))
        return Response(status=204)


def _filtered(request: Request) -> QuerySet[HardwareSpec]:
    rows = HardwareSpec.objects.all()
    if not query_boolean(request, "archived"):
        rows = rows.filter(archived_at__isnull=True)
    if (name := query_name(request)) is not None:
        rows = rows.filter(name=name)
    if text := query_value(request, "search"):
        rows = rows.filter(Q(contains("name", text)) | Q(contains("slug", text)) | Q(contains("uuid", text)))
    return rows
