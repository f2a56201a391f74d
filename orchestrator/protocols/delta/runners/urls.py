"""`/api/v1/internal/`: messages of runners."""

from django.urls import path

from orchestrator.http.asgi.long_poll import long_poll
from orchestrator.protocols.delta.runners import views

urlpatterns = [
    # A request for a lease can be a long poll. The OpenAPI document is generated from the second pattern.
    path("lease", long_poll(views.LeaseView.as_view())),
    path("lease", views.LeaseView.as_view()),
    path("ack-lease", views.AckLeaseView.as_view()),
    path("heartbeat", views.HeartbeatView.as_view()),
    path("complete", views.CompleteView.as_view()),
    path("cancel-ack", views.CancelAckView.as_view()),
]
