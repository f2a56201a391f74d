"""`/api/events`, `/api/jobs/{job_id}/events` and `/api/dashboard/events`."""

from django.urls import path, re_path

from orchestrator.protocols.stella.events.views import DashboardEventsView, EventListView, JobEventListView
from orchestrator.protocols.stella.visible_jobs import UUID_PATTERN

urlpatterns = [
    path("events", EventListView.as_view()),
    re_path(rf"^jobs/(?P<job_id>{UUID_PATTERN})/events\Z", JobEventListView.as_view()),
    path("dashboard/events", DashboardEventsView.as_view()),
]
