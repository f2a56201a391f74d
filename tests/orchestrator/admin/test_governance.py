"""The pages of quotas and incidents, and the buttons of incident mode."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from orchestrator.admin.dashboard.alerts import current_alerts, read_state
from orchestrator.core.cause import Cause
from orchestrator.incidents.models import Incident, IncidentMode
from orchestrator.incidents.operations import acknowledge_incident
from orchestrator.limits import quotas
from orchestrator.limits.quota_overview import QuotaOverview
from orchestrator.services import job_end
from orchestrator.webhooks.models import Webhook
from runtime_jobs.models import Organization, Plan
from runtime_jobs.states import FailureReason
from tests.factories import ALICE, OPERATOR, OrganizationFactory, ProjectFactory, WorkerFactory, claimed, submitted
from tests.orchestrator.admin.conftest import client_of, person
from tests.orchestrator.admin.pages import address
from tests.orchestrator.webhooks.world import make_webhook

pytestmark = pytest.mark.django_db

WHY = {"reason": "new disks"}


@pytest.fixture
def organization(db) -> Organization:
    found = OrganizationFactory(slug="sandtrace")
    ProjectFactory(organization=found)
    return found


def text_of(response) -> str:
    return response.content.decode()


def button(row, name: str, model: type | None = None) -> str:
    return address(model or type(row), "change", row.pk).replace("change/", f"{name}/")


class TestQuotas:
    def test_the_list_has_the_use_of_each_limit(self, olga, organization):
        changes = {"max_active": 5, "per_hour": 60, "burst": 1, "emergency_max_active": 2}
        quotas.set_quota(org_slug="sandtrace", changes=changes, cause=Cause(OPERATOR))
        for _ in range(2):
            submitted(organization.projects.get())
        claimed()
        page = text_of(olga.get(address(QuotaOverview, "changelist")))
        for expected in ("1 of 5", "1 of 60, burst 1", "at most 2", "operator olga", "1 of 10,000"):
            assert expected in page, expected
        Plan.objects.update(max_queued=None)
        assert "1, no limit" in text_of(olga.get(address(QuotaOverview, "changelist")))
        Plan.objects.update(max_queued=50)
        assert "1 of 50" in text_of(olga.get(address(QuotaOverview, "changelist")))
        assert "Queued jobs: 1 of 50." in text_of(olga.get(address(QuotaOverview, "change", organization.pk)))
        assert re.search(r"in \d+ (s|min)", page), "the next start"

    def test_the_page_has_each_job_type(self, olga, organization):
        quotas.set_quota(org_slug="sandtrace", job_type="runtime", changes={"max_active": 3}, cause=Cause(ALICE))
        page = text_of(olga.get(address(QuotaOverview, "change", organization.pk)))
        for expected in ("All types", "runtime", "0 of 3", "refused", "Set limits"):
            assert expected in page, expected

    def test_a_list_of_many_takes_as_many_queries_as_of_one(self, olga, organization):
        def count() -> int:
            with CaptureQueriesContext(connection) as queries:
                assert olga.get(address(QuotaOverview, "changelist")).status_code == 200
            return len(queries)

        count()  # the first one fills caches
        one = count()
        for number in range(20):
            OrganizationFactory(slug=f"org-{number}")
        assert count() == one

    def test_it_takes_the_permission(self, organization):
        page = address(QuotaOverview, "changelist")
        assert client_of(person("vera", "leases.view_limit")).get(page).status_code == 200
        assert client_of(person("nina", "runtime_jobs.view_job")).get(page).status_code == 403


class TestIncidents:
    @pytest.fixture
    def incident(self, organization) -> Incident:
        submitted(organization.projects.get())
        taken = claimed(worker := WorkerFactory())
        job_end.fail(lease_ulid=taken.lease.lease_ulid, worker=worker, reason=FailureReason.WORKER_ERROR)
        return Incident.objects.get()

    def test_it_is_acknowledged_and_resolved(self, olga, incident):
        page = address(Incident, "change", incident.pk)
        assert incident.job_ulid in text_of(olga.get(page))
        for name, status in (("acknowledge", "acknowledged"), ("resolve", "resolved")):
            assert button(incident, name) in text_of(olga.get(page))
            assert f"Incident {status}." in text_of(olga.post(button(incident, name), WHY, follow=True))
            assert button(incident, name) not in text_of(olga.get(page))
        incident.refresh_from_db()
        assert (incident.acknowledged_by, incident.resolution) == ("operator:olga", "new disks")

    def test_lists_by_state_and_kind(self, olga, incident):
        def shown(query: str) -> int:
            return len(olga.get(f"{address(Incident, 'changelist')}?{query}").context["cl"].result_list)

        assert [shown(query) for query in ("state=open", "state=new", "state=resolved")] == [1, 1, 0]
        assert [shown(query) for query in ("kind=job", "kind=breaker")] == [1, 0]
        acknowledge_incident(incident_ulid=incident.incident_ulid, cause=Cause(OPERATOR))
        assert [shown(query) for query in ("state=open", "state=new")] == [1, 0]

    def test_it_takes_the_permission(self, incident):
        vera = client_of(person("vera", "orchestrator.view_incident"))
        assert vera.get(address(Incident, "change", incident.pk)).status_code == 200
        for name in ("acknowledge", "resolve"):
            assert vera.post(button(incident, name), WHY).status_code == 403
        assert Incident.objects.get().status == "open"

    def test_that_of_a_webhook_leads_to_the_webhook(self, olga, organization):
        webhook, _ = make_webhook(organization), make_webhook(organization)
        terms = {"kind": "webhook", "org_slug": "sandtrace", "job_type": "", "opened_at": timezone.now()}
        found = Incident.objects.create(**terms, summary="The webhook fails.", webhook_ulid=webhook.webhook_ulid)
        shown = text_of(olga.get(address(Incident, "changelist")))
        link = address(Webhook, "change", webhook.webhook_ulid)
        assert f'href="{link}"' in shown
        assert olga.get(link).context["original"] == webhook
        assert "Its webhook stays paused." in text_of(olga.get(button(found, "resolve")))


class TestIncidentMode:
    def test_it_begins_is_shown_and_ends(self, olga, organization):
        page = address(Organization, "change", organization.pk)
        until = timezone.now() + timedelta(hours=5)
        body = WHY | {"until": f"{until:%Y-%m-%dT%H:%M}"}
        answer = olga.post(button(organization, "begin-incident-mode"), body, follow=True)
        assert "sandtrace is in incident mode until" in text_of(answer)
        assert "begun by operator olga: new disks" in text_of(olga.get(page))
        alerts = [alert.text for alert in current_alerts(read_state(timezone.now()))]
        assert any(text.startswith("Incident mode of sandtrace until") for text in alerts)
        answer = olga.post(button(organization, "end-incident-mode"), WHY, follow=True)
        assert "sandtrace is no longer in incident mode." in text_of(answer)
        assert not IncidentMode.objects.exists()
        answer = olga.post(button(organization, "end-incident-mode"), WHY, follow=True)
        assert "is not in incident mode" in text_of(answer)

    def test_what_makes_no_sense_changes_nothing(self, olga, organization):
        for until in ("", "2020-01-01T00:00", "2099-01-01T00:00"):
            olga.post(button(organization, "begin-incident-mode"), WHY | {"until": until})
        assert not IncidentMode.objects.exists()

    def test_it_takes_the_permission(self, organization):
        vera = client_of(person("vera", "runtime_jobs.view_organization"))
        for name in ("begin-incident-mode", "end-incident-mode"):
            assert vera.post(button(organization, name), WHY).status_code == 403
