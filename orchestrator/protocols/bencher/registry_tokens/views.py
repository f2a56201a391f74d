"""Views of `/v0/auth/oci/token`: the token service of the image registry for docker clients."""

from typing import Any, Final

from django.utils import timezone
from rest_framework.parsers import FormParser
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.images.tokens import (
    ACCESS_LIFETIME,
    PERSON_AUDIENCE,
    PROJECT_AUDIENCE,
    RepositoryAccess,
    new_access_token,
)
from orchestrator.protocols.bencher.authentication import BencherCaller
from orchestrator.protocols.bencher.base_view import BencherView
from orchestrator.protocols.bencher.errors import bad_request
from orchestrator.protocols.bencher.permissions import caller_of
from orchestrator.protocols.bencher.registry_tokens import openapi
from orchestrator.protocols.bencher.registry_tokens.authentication import KeyAsPassword, form_of
from orchestrator.protocols.bencher.registry_tokens.scopes import permitted_access, requested_actions
from orchestrator.protocols.bencher.wire import timestamp

PASSWORD_GRANT: Final = "password"  # noqa: S105 - a grant type of OAuth 2


class RegistryTokenView(BencherView):
    """`/v0/auth/oci/token`."""

    authentication_classes = (KeyAsPassword,)
    permission_classes = ()
    parser_classes: Any = (FormParser,)
    is_public = True

    @openapi.GET_REGISTRY_TOKEN_DOCS
    def get(self, request: Request) -> Response:
        """Exchange the key in `Authorization: Basic` for a token of the registry."""
        return _token(caller_of(request), request.query_params.getlist("scope"))

    @openapi.POST_REGISTRY_TOKEN_DOCS
    def post(self, request: Request) -> Response:
        """Exchange a key for a token of the registry, as OAuth 2 does."""
        if form_of(request).get("grant_type") != PASSWORD_GRANT:
            raise bad_request("grant_type: Must be password. Other grants are not supported.")
        return _token(caller_of(request), form_of(request).getlist("scope"))


def _token(caller: BencherCaller, scopes: list[str]) -> Response:
    access = permitted_access(caller, requested_actions(scopes))
    audience = PERSON_AUDIENCE if caller.user is not None else PROJECT_AUDIENCE
    now = timezone.now()
    token = new_access_token(caller.actor.name, access, audience=audience, now=now)
    return Response(
        {
            "token": token,
            "access_token": token,
            "expires_in": int(ACCESS_LIFETIME.total_seconds()),
            "issued_at": timestamp(now),
            "scope": " ".join(_scope(entry) for entry in access if entry.actions),
        }
    )


def _scope(entry: RepositoryAccess) -> str:
    return f"repository:{entry.name}:{','.join(entry.actions)}"
