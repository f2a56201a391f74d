"""`/api/graphql`. The WebSocket there is routed by `config.asgi`."""

from django.urls import path

from orchestrator.protocols.stella.graph.views import GraphQLView

urlpatterns = [path("graphql", GraphQLView.as_view())]
