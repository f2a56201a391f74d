"""Audit bundles that were written, and the keys that sign evidence; a button retires a key."""

from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.utils.safestring import SafeString
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from orchestrator.admin import formatting
from orchestrator.admin.base import ReadOnlyAdmin
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.filters import OrganizationFilter
from orchestrator.core.cause import Cause
from orchestrator.evidence.bundle_format import HISTORY, JOBS
from orchestrator.evidence.models import AuditBundle, SigningKey
from orchestrator.evidence.signing_keys import has_private_key, retire_signing_key
from runtime_jobs.models import Job


@admin.register(AuditBundle)
class AuditBundleAdmin(ReadOnlyAdmin):
    """Displays audit bundles, newest first."""

    list_display = ["written", "organization", "period", "rows", "size", "key", "job"]
    list_display_links = ["written"]
    list_filter = [OrganizationFilter]
    ordering = ["-id"]
    sortable_by = ()
    fields = ["organization", "period", "content", "size", "sha256_value", "key", "job", "written"]
    organization = formatting.value_column("org_slug", "Organization")
    written = formatting.timestamp_column("written_at", "Written")
    sha256_value = formatting.value_column("sha256", "SHA-256")

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditBundle]:
        rows: QuerySet[AuditBundle] = super().get_queryset(request)
        keys = SigningKey.objects.filter(key_id=OuterRef("key_id")).values("pk")
        jobs = Job.objects.filter(job_ulid=OuterRef("job_ulid")).values("pk")
        return rows.annotate(key_pk=Subquery(keys[:1]), job_pk=Subquery(jobs[:1]))

    @display(description="Jobs of")
    def period(self, bundle: AuditBundle) -> SafeString:
        return formatting.two_lines(formatting.format_utc(bundle.since), formatting.format_utc(bundle.until))

    @display(description="Lines")
    def content(self, bundle: AuditBundle) -> SafeString:
        return formatting.key_value_lines({name: f"{lines:,}" for name, lines in bundle.lines.items()})

    @display(description="Size")
    def size(self, bundle: AuditBundle) -> str:
        return filesizeformat(bundle.byte_count)

    @display(description="Content")
    def rows(self, bundle: AuditBundle) -> SafeString:
        jobs, events = (bundle.lines.get(name, 0) for name in (JOBS, HISTORY))
        return formatting.two_lines(f"{jobs:,} jobs", f"{events:,} events")

    @display(description="Signing key")
    def key(self, bundle: Any) -> SafeString:
        text = formatting.code(f"{bundle.key_id[:16]}…")
        return (
            text if bundle.key_pk is None else formatting.link(formatting.change_url(SigningKey, bundle.key_pk), text)
        )

    @display(description="Job")
    def job(self, bundle: Any) -> SafeString | str:
        """Return a link to the job, or its id alone if retention has deleted it."""
        if bundle.job_pk is None:
            return str(bundle.job_ulid)
        return formatting.link(formatting.change_url(Job, bundle.job_pk), bundle.job_ulid)


@admin.register(SigningKey)
class SigningKeyAdmin(ReadOnlyAdmin):
    """Displays the keys that sign evidence, or have signed it."""

    list_display = ["identifier", "status_badge", "private_half", "created", "retired"]
    list_display_links = ["identifier"]
    ordering = ["-id"]
    sortable_by = ()
    fields = ["identifier", "status_badge", "private_half", "created", "retired", "pem"]
    actions_detail = ["retire"]
    created = formatting.timestamp_column("created_at", "Created")
    retired = formatting.timestamp_column("retired_at", "Retired")

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Offer to retire a key that may sign."""
        key: Any = self.get_object(request, object_id)
        return super().get_actions_detail(request, object_id) if key is not None and key.retired_at is None else []

    @display(description="Key")
    def identifier(self, key: SigningKey) -> SafeString:
        return formatting.code(key.key_id)

    @display(description="Status", label={"active": "success", "retired": "default"})
    def status_badge(self, key: SigningKey) -> str:
        return "active" if key.retired_at is None else "retired"

    @display(description="Private key on this machine", boolean=True)
    def private_half(self, key: SigningKey) -> bool:
        return has_private_key(key)

    @display(description="Public key")
    def pem(self, key: SigningKey) -> SafeString:
        return formatting.code(key.public_pem)

    @action(
        description="Retire", url_path="retire", permissions=["operate"], icon="key_off", variant=ActionVariant.DANGER
    )
    def retire(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Stop the key from signing."""

        def act(key: SigningKey, cause: Cause) -> str:
            retire_signing_key(key.key_id, cause=cause)
            return f"Signing key {key.key_id[:16]} retired"

        text = "It no longer signs. What it has signed stays valid. `manage.py signingkey new` creates another one."
        return confirm_for_row(self, request, object_id, act, button="Retire", description=text, danger=True)
