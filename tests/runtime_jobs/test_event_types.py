"""The table of event types: all that operations write, and the same names wherever a client may choose some."""

import ast
import re
from pathlib import Path

import pytest

from orchestrator.incidents.models import IncidentStatus
from orchestrator.protocols.native.notification_rules.serializers import NotificationRuleInput
from orchestrator.protocols.native.webhooks.serializers import WebhookTermsInput
from orchestrator.protocols.native.webhooks.views import DeliveryFilters
from runtime_jobs.event_types import (
    CONSUMERS,
    DELIVERED_TYPES,
    EVENT_TYPES,
    FURTHER_JOB_EVENTS,
    ORGANIZATION_EVENT_TYPES,
)
from runtime_jobs.models import OperatorEvent
from tests.test_architecture import modules

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/protocols/stella-events.md"
FAMILIES = {event_type.partition(".")[0] for event_type in ORGANIZATION_EVENT_TYPES}
RECORDING = {"record_operator_event", "build_operator_event", "_record"}


def actions_of(tree: ast.Module):
    """The types that a module passes to the functions which record events of operators."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in RECORDING:
                yield from (found for argument in node.args for found in texts_of(argument))


def texts_of(argument: ast.expr):
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield argument.value
    if isinstance(argument, ast.IfExp):
        yield from texts_of(argument.body)
        yield from texts_of(argument.orelse)
    if isinstance(argument, ast.JoinedStr) and isinstance(argument.values[0], ast.Constant):
        # Only the operations of incidents form a type, of the status after the change.
        family = argument.values[0].value.removesuffix(".")
        yield from (f"{family}.{status}" for status in IncidentStatus if family == "incident")
        if family in FAMILIES - {"incident"}:
            yield ast.unparse(argument)


def test_all_types_that_operations_write_are_in_the_table_and_no_others():
    found = {
        action for name, tree in modules().items() if name.startswith("orchestrator.") for action in actions_of(tree)
    }
    found.discard("incident.open")  # the event of an opening has its own name
    written = {action for action in found if action.partition(".")[0] in FAMILIES}
    assert written == set(ORGANIZATION_EVENT_TYPES)


def test_the_types_are_listed_once():
    assert len(set(EVENT_TYPES)) == len(CONSUMERS) + len(FURTHER_JOB_EVENTS) + len(ORGANIZATION_EVENT_TYPES)


@pytest.mark.parametrize("form", [WebhookTermsInput, NotificationRuleInput])
def test_webhooks_and_rules_may_name_exactly_these(form):
    field = form().fields["event_types"].child
    assert set(field.choices) == set(EVENT_TYPES)


def test_deliveries_are_filtered_by_what_is_delivered():
    choices = dict(DeliveryFilters.base_filters["event_type"].extra["choices"])
    assert set(choices) == set(DELIVERED_TYPES)


def test_the_document_has_the_table():
    rows = re.findall(r"^\| (`(?:job|limit)\.[^|]*) \| ([a-z, ]+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    documented = {name: consumers for names, consumers in rows for name in re.findall(r"`([^`]+)`", names)}
    assert set(documented) == set(EVENT_TYPES)
    for name, consumers in documented.items():
        assert consumers == ", ".join(CONSUMERS.get(name, ("dashboard",)))


def test_the_longest_type_fits_its_column():
    assert max(map(len, DELIVERED_TYPES)) <= OperatorEvent._meta.get_field("action").max_length
