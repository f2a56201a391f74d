"""Views of `/v0/server`. Credentials are ignored: the command line sends them to every address."""

from typing import Final

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.protocols.bencher.base_view import BencherView
from orchestrator.protocols.bencher.server.openapi import GET_CONSOLE_DOCS, GET_VERSION_DOCS

# The version of Bencher whose API this server has. The command line displays a warning if its own is another one.
API_VERSION: Final = "0.6.12"


class ServerView(BencherView):
    """Base of these views."""

    authentication_classes = ()
    permission_classes = ()
    is_public = True


class ServerVersionView(ServerView):
    """`/v0/server/version`."""

    @GET_VERSION_DOCS
    def get(self, request: Request) -> Response:
        """Return the version of the API."""
        return Response({"version": API_VERSION})


class ConsoleConfigView(ServerView):
    """`/v0/server/config/console`."""

    @GET_CONSOLE_DOCS
    def get(self, request: Request) -> Response:
        """Return the address of the web pages."""
        return Response({"url": f"{settings.PUBLIC_URL}/"})
