"""View of `POST /v0/run` (contract 2.11)."""

from django.conf import settings
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from orchestrator.http.api.json_parser import body_of
from orchestrator.http.client_ip import client_address
from orchestrator.http.observability.request_context import context_of
from orchestrator.protocols.bencher.authentication import LOG_IN_HINT, OptionalCallerAuthentication, unauthenticated
from orchestrator.protocols.bencher.base_view import BencherView
from orchestrator.protocols.bencher.permissions import caller_of
from orchestrator.protocols.bencher.reports.streaming import report_response
from orchestrator.protocols.bencher.request_rates import register_anonymous_run, register_run
from orchestrator.protocols.bencher.runs.openapi import CREATE_RUN_DOCS
from orchestrator.protocols.bencher.runs.operation import create_run, read_results
from orchestrator.protocols.bencher.runs.projects import find_project
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
    def post(self, request: Request) -> HttpResponseBase:
        """Create a run: a report with the results in the request, or with a job that produces them.

        A project, branch or testbed that does not exist is created. Without authentication the project is created in
        an organization without an owner, whose jobs wait behind all others.
        """
        caller = caller_of(request)
        address = client_address(request) or UNKNOWN_ADDRESS
        if not caller.is_authenticated:
            if not settings.ANONYMOUS_RUNS:
                raise unauthenticated(f"This server accepts no anonymous runs. {LOG_IN_HINT}")
            register_anonymous_run(address)
        serializer = RunInput(data=body_of(request))
        serializer.is_valid(raise_exception=True)
        run = serializer.run_request()
        sender = RunSender(caller, address, context_of(request).correlation_id)
        if caller.is_authenticated:
            register_run(caller, lambda: find_project(run, sender))
        report = create_run(
            run,
            sender,
            results=[] if run.job else read_results(run),
            policy=configured_policy(OCI),
            default_pool=settings.DEFAULT_POOL,
        )
        return report_response(request, report, status=201)
