"""Settings of django-unfold, the theme of the admin (`orchestrator.admin`)."""

from typing import Any, Final

from django.templatetags.static import static

ADMIN_THEME: Final[dict[str, Any]] = {
    "SITE_TITLE": "Runtime Orchestrator",
    "SITE_HEADER": "Runtime Orchestrator",
    "SITE_SYMBOL": "conveyor_belt",
    "SITE_URL": None,
    "SHOW_HISTORY": False,  # Django's own log of changes; the admin writes operator events instead
    "SHOW_VIEW_ON_SITE": False,
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda _request: static("orchestrator/favicon.svg")}
    ],
    "STYLES": [lambda _request: static("orchestrator/console.css")],
    "LOGIN": {"form": "orchestrator.http.auth.login.OperatorLogin"},
    "DASHBOARD_CALLBACK": "orchestrator.admin.dashboard.views.dashboard",
    "SIDEBAR": {"show_search": False, "navigation": "orchestrator.admin.navigation.sidebar"},
    "COLORS": {
        "primary": {
            "50": "oklch(97.7% .013 236.62)",
            "100": "oklch(95.1% .026 236.824)",
            "200": "oklch(90.1% .058 230.902)",
            "300": "oklch(82.8% .111 230.318)",
            "400": "oklch(74.6% .16 232.661)",
            "500": "oklch(68.5% .169 237.323)",
            "600": "oklch(58.8% .158 241.966)",
            "700": "oklch(50% .134 242.749)",
            "800": "oklch(44.3% .11 240.79)",
            "900": "oklch(39.1% .09 240.876)",
            "950": "oklch(29.3% .066 243.157)",
        },
    },
}
