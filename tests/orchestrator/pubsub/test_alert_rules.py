"""The alert rules for streams of events name metrics that exist."""

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
