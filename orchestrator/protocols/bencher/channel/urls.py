"""`/v0/runners/{runner}/jobs` and `/channel`. WebSocket handshakes are routed by `config.asgi`."""

from django.urls import path

from orchestrator.http.asgi.long_poll import POLL_TIMEOUT, long_poll
from orchestrator.protocols.bencher.channel.views import RunnerClaimView, SocketPathView

urlpatterns = [
    # The OpenAPI document is generated from the second pattern.
    path("runners/<str:runner>/jobs", long_poll(RunnerClaimView.as_view(), POLL_TIMEOUT)),
    path("runners/<str:runner>/jobs", RunnerClaimView.as_view()),
    path("runners/<str:runner>/channel", SocketPathView.as_view()),
    path("runners/<str:runner>/jobs/<str:job>", SocketPathView.as_view()),
]
