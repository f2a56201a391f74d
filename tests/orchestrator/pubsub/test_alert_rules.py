"""The alert rules for streams of events name metrics that exist, and pages that explain them."""

import re

import pytest
import yaml

from config.paths import BASE_DIR
from orchestrator.pubsub.metrics import ALL

RULES = BASE_DIR / "deploy" / "prometheus" / "event_streams.yml"
EXPOSED = {name for metric in ALL for name in (metric._name, f"{metric._name}_total")}


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_names_metrics_of_the_product(rule):
    named = set(re.findall(r"orchestrator_\w+", rule["expr"]))
    assert named
    assert named <= EXPOSED
    assert {"summary", "description"} == set(rule["annotations"])


def test_the_delay_of_the_reader_is_an_alarm_that_the_document_explains():
    assert "orchestrator_event_reader_behind_seconds" in rules()[0]["expr"]
    assert "events arrive late" in (BASE_DIR / "docs" / "operations.md").read_text().lower()
