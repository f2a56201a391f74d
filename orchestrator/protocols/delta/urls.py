"""`/api/v1/…`: the door of Delta CI (document 001)."""

from django.urls import path, register_converter

from orchestrator.http.asgi.long_poll import long_poll
from orchestrator.protocols.delta import runs, views


class PrefixedId:
    """An id as this house writes them, a prefix and a ULID. Another door has whole numbers at the same addresses."""

    regex = "[a-z]+_[0-9a-z]{1,64}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(PrefixedId, "prefixed_id")

urlpatterns = [
    path("runs", runs.RunCreateView.as_view()),
    path("runs/<prefixed_id:batch_id>", runs.RunDetailView.as_view()),
    path("runs/<prefixed_id:batch_id>/cancel", runs.CancelRunView.as_view()),
    path("runs/<prefixed_id:batch_id>/rerun", runs.RerunRunView.as_view()),
    # A request for a lease may wait; the OpenAPI document is made from the plain view of the same address.
    path("internal/lease", long_poll(views.LeaseView.as_view())),
    path("internal/lease", views.LeaseView.as_view()),
    path("internal/ack-lease", views.AckLeaseView.as_view()),
    path("internal/heartbeat", views.HeartbeatView.as_view()),
    path("internal/complete", views.CompleteView.as_view()),
    path("internal/cancel-ack", views.CancelAckView.as_view()),
]
