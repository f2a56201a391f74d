"""The alert rules name metrics and labels that `/metrics` has."""

import re
from pathlib import Path

import pytest
import yaml

from tests.orchestrator.http.test_metrics import scrape

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "deploy" / "prometheus" / "orchestrator.yml"
RULES = [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]
OF_LATER = {"orchestrator_clock_beat_age_seconds"}  # missing until a scheduler process has run
FUNCTIONS = {"max", "min", "sum", "rate", "increase", "by", "histogram_quantile", "time", "absent", "le", "avg", "and"}


def metrics_of(expression: str) -> dict[str, set[str]]:
    """The metrics of an expression, each with the labels that it or its aggregation names."""
    grouped = {label.strip() for found in re.findall(r"by \(([^)]*)\)", expression) for label in found.split(",")}
    bare = re.sub(r"by \([^)]*\)|\[[^]]*\]", "", expression)
    matched = {label for found in re.findall(r"\{([^}]*)\}", bare) for label in re.findall(r"(\w+)\s*[=!]", found)}
    names = set(re.findall(r"[a-zA-Z_]\w*", re.sub(r"\{[^}]*\}", "", bare))) - FUNCTIONS
    return dict.fromkeys(names, grouped | matched)


@pytest.mark.django_db(transaction=True)
def test_each_rule_names_what_there_is():
    assert len(RULES) > 5
    text = scrape()
    described = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    source = "\n".join(path.read_text() for path in (ROOT / "orchestrator").rglob("*.py"))
    for rule in RULES:
        for name, labels in metrics_of(rule["expr"]).items():
            is_known = name in described or name.removesuffix("_bucket") in described
            assert is_known or name in OF_LATER, f"{rule['alert']}: {name}"
            for label in labels - {"le"}:
                assert f'"{label}"' in source, f"{rule['alert']}: {label}"
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning"}, rule["alert"]
