"""Errors outside our views: problem documents for programs, Django's pages for people in the admin."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views import defaults

from orchestrator.access.problems import Refusal, as_response

_FOR_PEOPLE = ("/admin/", "/runs/")


def _for_people(request: HttpRequest) -> bool:
    return request.path.startswith(_FOR_PEOPLE)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _for_people(request):
        return defaults.bad_request(request, exception)
    return as_response(Refusal(400, "invalid", "The request is not valid."), request)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _for_people(request):
        return defaults.permission_denied(request, exception)
    return as_response(Refusal(403, "forbidden", "That is not allowed."), request)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _for_people(request):
        return defaults.page_not_found(request, exception)
    return as_response(Refusal(404, "not_found", "There is no such thing, or you may not see it."), request)


def crashed(request: HttpRequest, *_: Any) -> HttpResponse:
    if _for_people(request):
        return defaults.server_error(request)
    return as_response(Refusal(500, "internal_error", "Something went wrong on our side."), request)
