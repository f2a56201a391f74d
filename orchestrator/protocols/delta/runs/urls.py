"""`/api/v1/runs`."""

from django.urls import path, register_converter

from orchestrator.protocols.delta.runs import views


class PrefixedIdConverter:
    """Matches ids of this server: a prefix and a ULID. Other protocols have whole numbers at the same paths."""

    regex = "[a-z]+_[0-9a-z]{1,64}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(PrefixedIdConverter, "prefixed_id")

urlpatterns = [
    path("runs", views.RunCreateView.as_view()),
    path("runs/<prefixed_id:batch_id>", views.RunDetailView.as_view()),
    path("runs/<prefixed_id:batch_id>/cancel", views.CancelRunView.as_view()),
    path("runs/<prefixed_id:batch_id>/rerun", views.RerunRunView.as_view()),
]
