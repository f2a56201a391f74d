"""The alert rules for deliveries name metrics that exist."""

import re

import pytest
import yaml

from config.paths import BASE_DIR
from orchestrator.http.observability.delivery_metrics import collect_delivery_metrics
from orchestrator.webhooks.models import DispatchPosition
from runtime_jobs.db_time import database_now
from tests.orchestrator.webhooks.world import make_deliveries, make_webhook

RULES = BASE_DIR / "deploy" / "prometheus" / "deliveries.yml"


@pytest.fixture
def metrics(db):
    DispatchPosition.objects.update_or_create(pk=1, defaults={"stamp": 3, "beat_at": database_now()})
    make_deliveries(make_webhook(), 2)
    make_deliveries(make_webhook(), status="dead", due_at=None, finished_at=database_now())
    return {metric.name: metric.samples[0].value for metric in collect_delivery_metrics()}


def test_the_numbers_are_those_of_the_rows(metrics):
    assert (metrics["deliveries_pending"], metrics["delivery_dead_letters"]) == (2, 1)
    assert 0 <= metrics["delivery_oldest_due_seconds"] < 60
    assert 0 <= metrics["dispatcher_beat_age_seconds"] < 60


def test_each_rule_names_a_metric(metrics):
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert len(rules) == len(metrics) - 1
    for rule in rules:
        assert set(re.findall(r"[a-z]+(?:_[a-z]+)+", rule["expr"])) <= set(metrics)
        assert set(rule["annotations"]) == {"summary", "description"}
