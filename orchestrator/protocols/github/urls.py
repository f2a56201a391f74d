"""`/api/v1/webhooks/`."""

from django.urls import path

from orchestrator.protocols.github.views import GithubWebhookView

urlpatterns = [path("api/v1/webhooks/github", GithubWebhookView.as_view(), name="github-webhook")]
