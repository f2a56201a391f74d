"""Routes every URL of the server."""

from django.contrib import admin
from django.contrib.auth.views import LogoutView
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularSwaggerSplitView

from orchestrator.http.api.schema_view import OpenAPISchemaView
from orchestrator.http.auth.login import Login, change_own_password
from orchestrator.http.observability import health
from orchestrator.protocols.native.identity.views import DiscoveryView, KeySetView

handler400 = "orchestrator.http.errors.error_views.bad_request"
handler403 = "orchestrator.http.errors.error_views.forbidden"
handler404 = "orchestrator.http.errors.error_views.not_found"
handler500 = "orchestrator.http.errors.error_views.crashed"

admin.autodiscover()

# Django tries them in order: routes that programs call come first.
urlpatterns = [
    path("v1/", include("orchestrator.protocols.native.urls")),
    path("api/v1/", include("orchestrator.protocols.delta.urls")),
    path("api/v1/", include("orchestrator.protocols.shithub.urls")),
    path("api/", include("orchestrator.protocols.stella.urls")),
    path("v0/", include("orchestrator.protocols.bencher.urls")),
    path("v2/", include("orchestrator.protocols.oci_registry.urls")),
    path("v1/schema", OpenAPISchemaView.as_view(), name="schema"),
    path("v1/docs", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    path("", RedirectView.as_view(pattern_name="admin:index"), name="home"),
    path("favicon.ico", RedirectView.as_view(url=static("orchestrator/favicon.svg"))),
    path("admin/password_change/", admin.site.admin_view(change_own_password, cacheable=True)),
    path("admin/", admin.site.urls),
    path("login/", Login.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path(".well-known/openid-configuration", DiscoveryView.as_view()),
    path(".well-known/jwks.json", KeySetView.as_view()),
    path("healthz", health.alive),
    path("readyz", health.ready),
    path("metrics", health.metrics),
    path("", include("orchestrator.protocols.stella.runs.urls")),
    path("", include("orchestrator.protocols.github.urls")),
    path("", include("orchestrator.protocols.ingest.urls")),
    path("", include("orchestrator.protocols.workflow_pages.urls")),
]
