"""`/api/v1/…`: the door of Delta CI (document 001)."""

from django.urls import path

from orchestrator.access.waiting import patient
from orchestrator.protocols.delta import views

urlpatterns = [
    # A request for a lease may wait; the OpenAPI document is made from the plain view of the same address.
    path("internal/lease", patient(views.Lease.as_view())),
    path("internal/lease", views.Lease.as_view()),
    path("internal/ack-lease", views.AckLease.as_view()),
    path("internal/heartbeat", views.Heartbeat.as_view()),
    path("internal/complete", views.Complete.as_view()),
    path("internal/cancel-ack", views.CancelAck.as_view()),
]
