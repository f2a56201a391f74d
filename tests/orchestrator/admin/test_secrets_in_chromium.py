"""The pages of secrets, variables, artifacts and caches in Chromium, and what a browser does with a hostile artifact.

With SCREENSHOTS=docs/images in the environment the pictures go there."""

import pytest
import requests
from django.utils import timezone

from orchestrator.artifacts.addresses import download_url
from orchestrator.core.cause import Cause
from orchestrator.secrets.operations import set_secret, set_variable
from runtime_jobs.models import CacheEntry, Secret, StoredArtifact, Variable
from tests.factories import ALICE, OrganizationFactory, ProjectFactory
from tests.orchestrator.admin.pages import address
from tests.orchestrator.admin.test_screenshots import is_visible, pictures, press
from tests.orchestrator.admin.test_stored_objects import stored
from tests.orchestrator.artifacts.conftest import FOLDER, use
from tests.workflow_jobs import make_repository

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
__all__ = ["pictures"]
VALUE = "hunter2-of-the-page"
HOSTILE = b"<!doctype html><title>mine</title><script>document.title = 'executed'; fetch('/admin/')</script>"


@pytest.fixture(autouse=True)
def _folder(settings, tmp_path):
    use(settings, FOLDER, location=str(tmp_path / "artifacts"))


@pytest.fixture
def repository(transactional_db):
    """The repository of an organization with two secrets and a variable."""
    found = make_repository(ProjectFactory(organization=OrganizationFactory(slug="acme", name="Acme")))
    scope = {"organization": found.project.organization, "cause": Cause(ALICE)}
    set_secret(name="DEPLOY_KEY", value=VALUE, repository=found, **scope)
    set_secret(name="REGISTRY_TOKEN", value=VALUE, repository=None, **scope)
    set_variable(name="REGION", value="eu-west-1", repository=None, **scope)
    return found


def fill(browser, **values):
    for name, value in values.items():
        browser.evaluate(f"document.querySelector('#id_{name}').value = {value!r}")


def test_the_pages_of_secrets_look_right_and_display_no_value(browser, live_server, repository, pictures):
    secret, variable = Secret.objects.get(name="DEPLOY_KEY"), Variable.objects.get()
    for name, path, selectors in (
        ("admin-secrets", address(Secret, "changelist"), ("#result_list", "#searchbar")),
        ("admin-secret", address(Secret, "change", secret.pk), ('a[href$="/value/"]', 'a[href$="/remove/"]')),
        ("admin-secret-new", address(Secret, "add"), ("#id_name", "#id_value", "#id_full_name")),
        ("admin-secret-value", address(Secret, "change_value", secret.pk), ("#id_value",)),
        ("admin-variables", address(Variable, "changelist"), ("#result_list",)),
        ("admin-variable", address(Variable, "change", variable.pk), ('a[href$="/value/"]',)),
    ):
        browser.show(height=760)
        browser.open(live_server.url + path)
        is_visible(browser, *selectors)
        assert VALUE not in browser.evaluate("document.documentElement.outerHTML"), path
        browser.picture(pictures / f"{name}.png")
    assert browser.errors == []


def test_a_secret_is_changed_by_its_button_and_never_comes_back(browser, live_server, repository):
    secret = Secret.objects.get(name="DEPLOY_KEY")
    browser.open(live_server.url + address(Secret, "change", secret.pk))
    press(browser, 'a[href$="/value/"]')
    fill(browser, value="another-hunter3")
    press(browser, 'form.card button[type="submit"]')
    browser.until("document.body.textContent.includes('changed.')")
    assert "hunter3" not in browser.evaluate("document.documentElement.outerHTML")
    changed = Secret.objects.get(name="DEPLOY_KEY")
    assert bytes(changed.sealed) != bytes(secret.sealed)
    assert browser.errors == []


def test_the_pages_of_stored_objects_look_right(browser, live_server, transactional_db, pictures):
    job, artifact, entry = stored("dist/report.html", b"x" * 200_000)
    for name, path, selectors in (
        ("admin-artifacts", address(StoredArtifact, "changelist"), ("#result_list",)),
        ("admin-artifact", address(StoredArtifact, "change", artifact.pk), ('a[href$="/download/"]',)),
        ("admin-caches", address(CacheEntry, "changelist"), ("#result_list",)),
        ("admin-cache", address(CacheEntry, "change", entry.pk), ('a[href$="/remove/"]',)),
        ("admin-job-artifacts", f"/admin/runtime_jobs/job/{job.job_ulid}/change/", ('td a[href$="/download/"]',)),
    ):
        browser.show(height=900 if "job" not in name else 1300)
        browser.open(live_server.url + path)
        is_visible(browser, *selectors)
        browser.picture(pictures / f"{name}.png")
    assert browser.errors == []


@pytest.mark.parametrize("name", ["report.html", "image.svg", "page.xhtml", "x"])
def test_a_hostile_artifact_is_no_page(browser, live_server, transactional_db, settings, name):
    """A browser with a session of the admin opens the address of an artifact that is a page with a script."""
    settings.PUBLIC_URL = live_server.url
    _, artifact, _ = stored(name, HOSTILE)
    browser.open(live_server.url + address(StoredArtifact, "change", artifact.pk))
    title = browser.evaluate("document.title")
    gone = browser.ask("Page.navigate", url=live_server.url + address(StoredArtifact, "download", artifact.pk))
    assert gone["errorText"] == "net::ERR_ABORTED", "a download, and no page"
    assert browser.evaluate("document.title") == title
    assert browser.evaluate("document.querySelector('title').textContent") not in {"mine", "executed"}


def test_the_headers_of_a_hostile_artifact_forbid_everything(live_server, transactional_db, settings):
    settings.PUBLIC_URL = live_server.url
    _, artifact, _ = stored("report.html", HOSTILE)
    answer = requests.get(download_url(artifact, file_name="report.html", now=timezone.now()), timeout=60)
    assert (answer.status_code, answer.content) == (200, HOSTILE)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="report.html"'
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert answer.headers["X-Frame-Options"] == "DENY"
