"""OpenAPI: every operation says which problem documents it may answer."""

from typing import Any, Literal

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiResponse, inline_serializer
from rest_framework import serializers

from orchestrator.access.problems import MEDIA_TYPE, TITLES

Problem = inline_serializer(
    "Problem",
    {
        "type": serializers.CharField(),
        "title": serializers.CharField(),
        "status": serializers.IntegerField(),
        "detail": serializers.CharField(),
        "code": serializers.CharField(help_text="Stable; see docs/api.md for the list."),
        "request_id": serializers.CharField(),
        "errors": serializers.DictField(
            child=serializers.ListField(child=serializers.CharField()), required=False, help_text="By field."
        ),
    },
)


class ProblemSchema(AutoSchema):
    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> dict[str, Any]:
        bodies = super()._get_response_bodies(direction)
        for status in self._refusals():
            if str(status) not in bodies:
                response = OpenApiResponse(Problem, description=TITLES[status])
                bodies[str(status)] = self._get_response_for_code(response, str(status), [MEDIA_TYPE])
        return bodies

    def _refusals(self) -> list[int]:
        always = [400, 401, 403, 406, 429, 503]
        named = [404] if "{" in self.path else []
        changing = [404, 409, 413, 415] if self.method == "POST" else []
        return sorted({*always, *named, *changing})


class BearerScheme(OpenApiAuthenticationExtension):
    target_class = "orchestrator.access.authentication.BearerToken"
    name = "bearer"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:  # noqa: ARG002 the library's signature
        return {"type": "http", "scheme": "bearer"}


class SessionScheme(OpenApiAuthenticationExtension):
    target_class = "orchestrator.access.authentication.BrowserSession"
    name = "session"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:  # noqa: ARG002 the library's signature
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}
