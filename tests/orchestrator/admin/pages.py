"""Lists every page of the admin, for tests that hold for all of them."""

from django.contrib import admin
from django.urls import reverse

from runtime_jobs.models import JobEvent, OperatorEvent

admin.autodiscover()  # as the URLs do, which a test may not have needed yet
DASHBOARD = "/admin/"
KINDS = {JobEvent: "event_type", OperatorEvent: "action"}


def address(model: type, page: str, *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def nouns() -> list[type]:
    return sorted(admin.site._registry, key=lambda model: model.__name__)


def all_pages() -> list[str]:
    """The first page, every list, every row's page and history, every form, every question of every button.

    Of events there is one of each kind: a test may have hundreds, which are displayed by the same lines. So are the
    histories of a noun's rows, of which there are the first and the last.
    """
    found = [DASHBOARD, "/admin/password_change/"]
    for model in nouns():
        page = admin.site._registry[model]
        found += [address(model, "changelist"), address(model, "add")]
        rows = model.objects.order_by("pk")
        if kind := KINDS.get(model):
            rows = model.objects.order_by(kind, "pk").distinct(kind)
        rows = list(rows)
        found += [
            address(model, "history", row.pk) for row in {row.pk: row for row in (*rows[:1], *rows[-1:])}.values()
        ]
        for row in rows:
            found += [address(model, "change", row.pk)]
            found += [address(model, name, row.pk) for name in page._extract_action_names(page.actions_detail)]
    return found
