"""`/v1/runtime/leases/{lease_id}/steps`."""

from django.urls import path

from orchestrator.protocols.native.workflow_jobs.views import LeaseStepViewSet

_OF_LEASE = "runtime/leases/<str:lease_id>/steps"

urlpatterns = [
    path(f"{_OF_LEASE}/start", LeaseStepViewSet.as_view({"post": "start"})),
    path(f"{_OF_LEASE}/<int:index>/begin", LeaseStepViewSet.as_view({"post": "begin"})),
    path(f"{_OF_LEASE}/<int:index>/end", LeaseStepViewSet.as_view({"post": "end"})),
]
