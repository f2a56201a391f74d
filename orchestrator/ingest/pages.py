"""`/runs/` and `/runs/{run_id}/`: runs for people. Staff see every run, members their organizations', others none."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from orchestrator.http.auth.principals import client_of_person
from orchestrator.ingest.models import Run
from orchestrator.ingest.presenter import RunPresenter
from runtime_jobs.models import Job

LISTED = 100


@never_cache
@require_safe
@login_required
def runs_page(request: HttpRequest) -> HttpResponse:
    """The newest runs, from the jobs' rows: a run's own row is large."""
    mine = client_of_person(request.user).organizations
    jobs = Job.objects.filter(ingest_run_id__isnull=False).order_by("-id")
    shown = jobs if mine is None else jobs.of_organizations(list(mine))
    return render(request, "ingest/runs.html", {"jobs": shown[:LISTED], "nowhere": mine == ()})


@never_cache
@require_safe
@login_required
def run_page(request: HttpRequest, run_id: str) -> HttpResponse:
    run = Run.objects.filter(run_id=run_id).first()
    if run is None or not client_of_person(request.user).sees(run.org_slug):
        raise Http404
    job = Job.objects.filter(job_ulid=run.job_id).first()
    context = {"run": run, "job": job, "job_page": _job_page(request.user, job), "shown": RunPresenter(run.payload)}
    return render(request, "ingest/run.html", context)


def _job_page(user: Any, job: Job | None) -> str:
    """The operators' page of the job for those who may see it, else the job as the API shows it."""
    if job is None:
        return ""
    try:
        return reverse("admin:runtime_jobs_job_change", args=[job.pk]) if user.is_staff else _api_of(job)
    except NoReverseMatch:
        return _api_of(job)


def _api_of(job: Job) -> str:
    return reverse("runtime-job-detail", kwargs={"job_id": job.job_ulid})
