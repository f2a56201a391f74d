"""View of `/v1/schema`: the OpenAPI document, without authentication."""

from functools import cache

from django.http import HttpResponse
from django.utils.encoding import force_str
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.views import APIView

from orchestrator.http.api.query_parameters import StrictQueryMixin


class OpenAPISchemaView(StrictQueryMixin, APIView):
    """Returns the document. Each process builds it once per media type, which takes half a second."""

    authentication_classes = ()
    permission_classes = (AllowAny,)
    renderer_classes = SpectacularAPIView.renderer_classes
    http_method_names = ("get", "head")

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        media_type = str(request.accepted_renderer.media_type)
        return HttpResponse(_rendered(media_type), content_type=f"{media_type}; charset=utf-8")


@cache
def _rendered(media_type: str) -> str:
    document = SchemaGenerator().get_schema(request=None, public=True)
    renderer = next(kind for kind in OpenAPISchemaView.renderer_classes if kind.media_type == media_type)
    return force_str(renderer().render(document, renderer_context={}))
