"""The pages of artifacts and cache entries: origin, size, and buttons to download and delete them."""

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import filesizeformat
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from orchestrator.admin import formatting
from orchestrator.admin.base import LargeTableAdmin
from orchestrator.admin.confirm import confirm_for_row
from orchestrator.admin.filters import RelatedOrganizationFilter, exact_filter
from orchestrator.admin.jobs.artifacts import visible_artifacts
from orchestrator.artifacts.addresses import download_url
from orchestrator.artifacts.operations import delete_stored_object
from orchestrator.core.cause import Cause
from runtime_jobs.models import CacheEntry, Job, StoredArtifact
from runtime_jobs.models.artifacts import StoredObject

COLOURS = {"complete": "success", "uploading": "info", "expired": "default", "deleted": "default"}


RelatedProjectFilter = exact_filter("project", "project__slug")


class StoredObjectAdmin(LargeTableAdmin):
    """Displays stored objects and deletes them."""

    list_select_related = ["organization", "project"]
    ordering = ["-id"]
    created = formatting.timestamp_column("created_at", "Created")
    completed = formatting.timestamp_column("completed_at", "Completed")
    age = formatting.age_column("created_at", "Age")
    digest = formatting.value_column("sha256", "SHA-256")

    @display(description="Project")
    def tenant(self, row: StoredObject) -> str:
        return f"{row.organization.slug}/{row.project.slug}"

    @display(description="Size")
    def size(self, row: StoredObject) -> str:
        return filesizeformat(row.byte_count)

    @display(description="State", label=COLOURS)
    def state_badge(self, row: StoredObject) -> str:
        expires_at = getattr(row, "expires_at", None)
        if row.is_abandoned:
            return "deleted"
        if row.completed_at is None:
            return "uploading"
        return "expired" if expires_at is not None and expires_at <= timezone.now() else "complete"

    @action(
        description="Delete", url_path="remove", permissions=["operate"], icon="delete", variant=ActionVariant.DANGER
    )
    def delete_object(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Hide the object; housekeeping deletes it."""
        noun = self.opts.verbose_name

        def act(row: StoredObject, cause: Cause) -> str:
            delete_stored_object(self.model, row.pk, cause=cause)
            return f"{str(noun).capitalize()} {row} deleted"

        return confirm_for_row(
            self,
            request,
            object_id,
            act,
            button="Delete",
            description="Nobody can download it any more. Housekeeping deletes its content.",
            title=f"Delete {noun} {{row}}",
            back=formatting.changelist_url(self.model),
            danger=True,
        )


@admin.register(StoredArtifact)
class StoredArtifactAdmin(StoredObjectAdmin):
    """Displays artifacts, with the button Download."""

    list_display = ["state_badge", "name", "tenant", "job_link", "size", "age", "expires"]
    list_display_links = ["name"]
    list_filter = [RelatedOrganizationFilter, RelatedProjectFilter, exact_filter("job id", "job_id")]
    fields = ["state_badge", "artifact_id", "name", "tenant", "job_link", "size", "digest", "created", "completed"]
    fields += ["expires"]
    actions_detail = ["download", "delete_object"]
    artifact_id = formatting.value_column("artifact_ulid", "Artifact id")
    expires = formatting.timestamp_column("expires_at", "Expires")

    @display(description="Job")
    def job_link(self, row: StoredArtifact) -> SafeString:
        return formatting.link(formatting.change_url(Job, row.job_id), row.job_id)

    def has_download_permission(self, request: HttpRequest, _object_id: object = None) -> bool:
        return bool(self.has_view_permission(request))

    @action(description="Download", url_path="download", permissions=["download"], icon="download")
    def download(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Redirect to an address of the content. It is an attachment of the API, never a page of the admin."""
        row = self.existing_row(request, object_id)
        now = timezone.now()
        if not visible_artifacts(now).filter(pk=row.pk).exists():
            messages.warning(request, "The artifact is not complete, or was deleted.")
            return HttpResponseRedirect(formatting.change_url(StoredArtifact, row.pk))
        return HttpResponseRedirect(download_url(row, file_name=row.name.rpartition("/")[2], now=now))


@admin.register(CacheEntry)
class CacheEntryAdmin(StoredObjectAdmin):
    """Displays cache entries."""

    list_display = ["state_badge", "key", "tenant", "ref", "size", "used", "age"]
    list_display_links = ["key"]
    list_filter = [RelatedOrganizationFilter, RelatedProjectFilter, exact_filter("key", "key")]
    fields = ["state_badge", "key", "tenant", "ref", "version", "size", "digest", "created", "completed", "last_used"]
    actions_detail = ["delete_object"]
    used = formatting.age_column("last_used_at", "Last used")
    last_used = formatting.timestamp_column("last_used_at", "Last used")

    @display(description="Jobs")
    def ref(self, row: CacheEntry) -> str:
        return f"of the pull request {row.scope}" if row.scope else "all of the project"
