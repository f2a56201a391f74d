"""Lists every page of the admin, for tests that hold for all of them."""

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.urls import reverse

from leases.models import Lease
from runtime_jobs.models import Job, JobEvent, OperatorEvent

admin.autodiscover()  # as the URLs do, which a test may not have needed yet
DASHBOARD = "/admin/"
KINDS = {JobEvent: ["event_type"], OperatorEvent: ["action"], Lease: ["state"]}
QUESTIONS = {Job: ["state", "failure_reason"]}  # on which it depends whether a button is there


def address(model: type, page: str, *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def nouns() -> list[type]:
    return sorted(admin.site._registry, key=lambda model: model.__name__)


def all_pages() -> list[str]:
    """The first page, every list, every row's page and history, every form, every question of every button.

    Of events and leases there is one of each kind: a test may have hundreds, which are displayed by the same lines. So
    are the questions about jobs in one state that failed for one reason, and the histories of a noun's rows, of which
    there are the first and the last.
    """
    found = [DASHBOARD, "/admin/password_change/"]
    for model in nouns():
        page = admin.site._registry[model]
        found += [address(model, "changelist"), address(model, "add")]
        rows = _rows(model, KINDS.get(model, ()))
        asked = _rows(model, QUESTIONS[model]) if model in QUESTIONS else rows
        found += [
            address(model, "history", row.pk) for row in {row.pk: row for row in (*rows[:1], *rows[-1:])}.values()
        ]
        found += [address(model, "change", row.pk) for row in rows]
        names = page._extract_action_names(page.actions_detail)
        found += [address(model, name, row.pk) for row in asked for name in names]
    return found


def _rows(model: type, columns: Sequence[str] = ()) -> list[Any]:
    """The first row of each kind, which is what the columns say; all rows without columns."""
    return list(model.objects.order_by(*columns, "pk").distinct(*columns))
