"""View of `POST /v0/run` (contract 2.11)."""

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.api.json_parser import body_of
from orchestrator.http.client_ip import client_address, network_of
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability.request_context import context_of
from orchestrator.http.request_limits import RequestRateExceeded, RequestRates, count_request
from orchestrator.protocols.bencher.authentication import LOG_IN_HINT, OptionalCallerAuthentication, unauthenticated
from orchestrator.protocols.bencher.base_view import BencherView
from orchestrator.protocols.bencher.permissions import caller_of
from orchestrator.protocols.bencher.reports.wire import serialize_report
from orchestrator.protocols.bencher.runs.openapi import CREATE_RUN_DOCS
from orchestrator.protocols.bencher.runs.operation import create_run, read_results
from orchestrator.protocols.bencher.runs.request import RunSender
from orchestrator.protocols.bencher.runs.serializers import RunInput
from runtime_jobs.specs import OCI, configured_policy

UNKNOWN_ADDRESS = "127.0.0.1"  # of a client without one, such as on a Unix socket


class BenchmarkRunView(BencherView):
    """Creates runs."""

    authentication_classes = (OptionalCallerAuthentication,)
    permission_classes = ()
    is_public = True

    @CREATE_RUN_DOCS
    def post(self, request: Request) -> Response:
        """Create a run: a report with the results in the request, or with a job that produces them.

        A project, branch or testbed that does not exist is created. Without authentication the project is created in
        an organization without an owner, whose jobs wait behind all others.
        """
        caller = caller_of(request)
        address = client_address(request) or UNKNOWN_ADDRESS
        if not caller.is_authenticated:
            _admit_anonymous(address)
        serializer = RunInput(data=body_of(request))
        serializer.is_valid(raise_exception=True)
        run = serializer.run_request()
        report = create_run(
            run,
            RunSender(caller, address, context_of(request).correlation_id),
            results=[] if run.job else read_results(run),
            policy=configured_policy(OCI),
            default_pool=settings.DEFAULT_POOL,
        )
        return Response(serialize_report(report), status=201)


def _admit_anonymous(address: str) -> None:
    """Count an anonymous run.

    Raises:
        ApiError: 401, this server accepts no anonymous runs; 429, the address sends too many.
    """
    if not settings.ANONYMOUS_RUNS:
        raise unauthenticated(f"This server accepts no anonymous runs. {LOG_IN_HINT}")
    rates = RequestRates(
        settings.ANONYMOUS_RUNS_PER_MINUTE, settings.ANONYMOUS_RUNS_PER_HOUR, settings.ANONYMOUS_RUNS_PER_DAY
    )
    try:
        count_request("anonymous_run", network_of(address), rates)
    except RequestRateExceeded as error:
        detail = f"Too many requests for unclaimed run per {error.window}. Please, try again later."
        headers = {"Retry-After": str(error.retry_after)}
        raise ApiError(429, "rate_limited", f"{detail} The limit is {error.limit}.", headers=headers) from None
