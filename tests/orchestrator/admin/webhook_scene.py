"""Webhooks, deliveries, notification rules and incidents for the pictures of the admin, made by the operations."""

from datetime import datetime, timedelta

from orchestrator.core.cause import Cause
from orchestrator.incidents import incident_mode
from orchestrator.incidents.models import Incident
from orchestrator.webhooks.delivery_queue import FinishedTry, claim_deliveries, record_tries
from orchestrator.webhooks.health import record_health
from orchestrator.webhooks.models import Delivery, NotificationRule, Webhook
from orchestrator.webhooks.sender import TryResult
from runtime_jobs.models import Organization
from tests.factories import OPERATOR
from tests.orchestrator.admin.fixtures import Scene
from tests.orchestrator.webhooks.world import make_deliveries, make_webhook

EVENT_TYPES = ("job.completed", "job.failed", "breaker.opened", "job.canceled")


def webhooks_afternoon(scene: Scene) -> dict[str, Webhook]:
    """A webhook that works, one that fails, one that has failed for five days, and rules for two of them."""
    sandtrace, acme, northwind = (
        Organization.objects.get(slug=slug) for slug in ("sandtrace", "acme-labs", "northwind")
    )
    made = {
        "works": _webhook(scene, sandtrace, "https://hooks.sandtrace.dev/orchestrator"),
        "fails": _webhook(scene, acme, "https://ci.acme-labs.example/hooks/7f3a", event_types=("job.failed",)),
        "paused": _webhook(scene, northwind, "https://old.northwind.example/in"),
    }
    for number, event_type in enumerate(EVENT_TYPES):
        _tried(made["works"], event_type, scene.ago(20 - number), 204, "The receiver accepted the delivery.")
    for days in (5, 0):
        at = scene.at - timedelta(days=days, minutes=3 if days else 2)
        _tried(made["paused"], "job.completed", at, None, "The certificate of the receiver is not valid for its name.")
        Delivery.objects.filter(due_at__isnull=False).update(due_at=None, status="dead", finished_at=at)
    _tried(made["fails"], "job.failed", scene.ago(1), 503, "The receiver answered 503.", "upstream is down")
    for name, organization, webhook, terms in (
        ("Failures of the infrastructure", sandtrace, made["works"], {"failure_classes": ["worker", "infrastructure"]}),
        (
            "Breakers",
            acme,
            None,
            {"event_types": ["breaker.opened", "incident.opened"], "recipients": ["ops@acme.dev"]},
        ),
    ):
        NotificationRule.objects.create(
            organization=organization, name=name, webhook=webhook, **{"event_types": ["job.failed"]} | terms
        )
    lost = scene.jobs["lost"]
    for kind, job, text in (
        ("job", lost.job_ulid, f"A runtime job of {lost.org_slug}/{lost.project_slug} failed: lease_expired."),
        ("breaker", None, "62% of the last steps jobs of acme-labs failed."),
    ):
        job_type = "steps" if job is None else lost.job_type
        org_slug = "acme-labs" if job is None else lost.org_slug
        Incident.objects.create(
            kind=kind, org_slug=org_slug, job_type=job_type, job_ulid=job, summary=text, opened_at=scene.ago(12)
        )
    until = scene.at + timedelta(hours=6)
    incident_mode.begin_incident_mode(
        org_slug="acme-labs", cause=Cause(OPERATOR, "A leak is investigated."), until=until
    )
    return made


def _webhook(scene: Scene, organization: Organization, url: str, **terms: object) -> Webhook:
    return make_webhook(organization, url=url, description="", now=scene.at - timedelta(days=9), **terms)


def _tried(
    webhook: Webhook, event_type: str, at: datetime, status: int | None, sentence: str, answer: str = ""
) -> None:
    """One delivery with one try."""
    make_deliveries(webhook, due_at=at, created_at=at, event_type=event_type, job_type="runtime")
    (claimed,) = claim_deliveries(1, now=at)
    result = TryResult(at, 84, is_success=status == 204, status_code=status, sentence=sentence, answer=answer)
    record_tries([FinishedTry(claimed, result)], record_health=record_health, now=at)
