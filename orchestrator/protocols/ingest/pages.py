"""The pages `/runs/` and `/runs/{run_id}/`. Staff see all runs; members see the runs of their organizations."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from orchestrator.core.principals import client_of_person
from orchestrator.http.auth.login import page_login_required
from orchestrator.ingest.models import Run
from orchestrator.ingest.presenter import RunPresenter
from runtime_jobs.models import Job

MAX_LISTED_RUNS = 100


@never_cache
@require_safe
@page_login_required
def runs_page(request: HttpRequest) -> HttpResponse:
    """List the newest runs. Reads the rows of jobs: the row of a run contains its large payload."""
    mine = client_of_person(request.user).organizations
    jobs = Job.objects.filter(ingest_run_id__isnull=False).order_by("-id")
    visible = jobs if mine is None else jobs.of_organizations(list(mine))
    return render(
        request,
        "ingest/runs.html",
        {"jobs": visible[:MAX_LISTED_RUNS], "limit": MAX_LISTED_RUNS, "is_member": mine != ()},
    )


@never_cache
@require_safe
@page_login_required
def run_page(request: HttpRequest, run_id: str) -> HttpResponse:
    """Display one run. A run of another organization is answered 404, like one that does not exist."""
    run = Run.objects.filter(run_id=run_id).first()
    if run is None or not client_of_person(request.user).sees(run.org_slug):
        raise Http404
    job = Job.objects.filter(job_ulid=run.job_id).first()
    report = RunPresenter(run.payload, job.trace if job else None)
    context = {"run": run, "job": job, "job_url": _job_url(request.user, job), "report": report}
    return render(request, "ingest/run.html", context)


def _job_url(user: Any, job: Job | None) -> str:
    """Return the admin page of the job for staff, otherwise its address in the API."""
    if job is None:
        return ""
    try:
        return reverse("admin:runtime_jobs_job_change", args=[job.pk]) if user.is_staff else _api_url(job)
    except NoReverseMatch:
        return _api_url(job)


def _api_url(job: Job) -> str:
    return reverse("runtime-job-detail", kwargs={"job_id": job.job_ulid})
