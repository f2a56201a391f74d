"""docs/operations.md, *Connecting a GitHub repository*, step by step in a real browser."""

import pytest
from django.core.cache import cache

from runtime_jobs.models import Job, Project
from tests.factories import OrganizationFactory, ProjectFactory
from tests.orchestrator.admin.chromium import Tab
from tests.orchestrator.admin.test_screenshots import is_visible, pictures, press
from tests.orchestrator.protocols.github.conftest import deliver

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
__all__ = ["pictures"]  # a fixture of the other file

SAVE = 'button[name="_save"], input[name="_save"]'


def fill(browser: Tab, **values: str) -> None:
    for name, value in values.items():
        browser.evaluate(f"document.querySelector('[name={name}]').value = {value!r}")


@pytest.fixture
def project(transactional_db) -> Project:
    cache.clear()
    return ProjectFactory(organization=OrganizationFactory(slug="acme"), enabled=False, repositories=[])


def test_a_repository_is_connected_as_the_page_says(browser, live_server, project, pictures):
    page = f"{live_server.url}/admin/runtime_jobs/project/{project.pk}/change/"
    browser.open(page)
    fill(browser, repositories="cc-consulting-nv/web", configured_command="pnpm\ninstall")
    browser.evaluate("document.querySelector('[name=enabled]').click()")
    browser.evaluate("document.querySelector('[name=push_enabled]').click()")
    browser.picture(pictures / "connect-1-project.png", whole=True)
    press(browser, SAVE)
    project.refresh_from_db()
    assert (project.enabled, project.push_enabled, project.configured_command) == (True, True, ["pnpm", "install"])

    browser.open(page)
    press(browser, 'a[href$="/webhook-secret/"]')
    fill(browser, reason="connect the repository")
    press(browser, 'form.card button[type="submit"]')
    secret = browser.evaluate("document.querySelector('#token').textContent")
    is_visible(browser, "#token")
    assert secret.startswith("rto_hook_")

    assert deliver("ping", secret).status_code == 202
    assert deliver("pull_request.opened", secret).status_code == 201
    browser.open(f"{live_server.url}/admin/orchestrator/webhookdelivery/")
    browser.picture(pictures / "connect-2-deliveries.png")
    table = browser.evaluate("document.querySelector('#result_list').textContent")
    assert "created" in table
    assert "ignored" in table
    press(browser, f'a[href*="{Job.objects.get().job_ulid}"]')
    assert Job.objects.get().job_ulid in browser.evaluate("document.title")
    assert browser.errors == []
