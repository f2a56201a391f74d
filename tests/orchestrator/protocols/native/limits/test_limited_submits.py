"""Scheduling fields of a submit: a priority, and a concurrency key."""

import pytest

from runtime_jobs.models import Job
from tests.api_client import refused
from tests.factories import SUBMIT_ANY_BODY, SUBMIT_BODY, PlanFactory
from tests.orchestrator.protocols.native.limits.limit_requests import EMERGENCY, ok

pytestmark = pytest.mark.django_db


SUBMITS = {"/v1/runtime/jobs": SUBMIT_BODY, "/v1/jobs": SUBMIT_ANY_BODY}


@pytest.mark.parametrize("path", SUBMITS)
class TestSubmits:
    @pytest.mark.parametrize(("name", "number"), [(None, 200), ("low", 50), ("normal", 150)])
    def test_a_priority_up_to_the_plans(self, alice, path, name, number):
        assert ok(alice.post(path, SUBMITS[path] | {"priority": name}), 201)["priority"] == number

    @pytest.mark.parametrize("name", ["high", "emergency"])
    def test_not_above_it(self, alice, path, name):
        refused(lambda: alice.post(path, SUBMITS[path] | {"priority": name}), 403, "priority_forbidden")

    def test_an_emergency_where_an_operator_allowed_some(self, alice, olga, path):
        ok(olga.post("/v1/limits", EMERGENCY), 201)
        assert ok(alice.post(path, SUBMITS[path] | {"priority": "emergency"}), 201)["priority"] == 400

    def test_a_high_one_with_a_high_plan(self, alice, organization, path):
        organization.plan = PlanFactory(name="firm", priority=300)
        organization.save()
        assert ok(alice.post(path, SUBMITS[path] | {"priority": "high"}), 201)["priority"] == 250

    @pytest.mark.parametrize("wrong", ["urgent", 5, "LOW", "free", "enterprise", ""])
    def test_only_the_names(self, alice, path, wrong):
        refused(lambda: alice.post(path, SUBMITS[path] | {"priority": wrong}), 400, "invalid")

    @pytest.mark.parametrize(
        ("when_busy", "states"),
        [
            ("queue", ["queued", "queued"]),
            ("cancel_older", ["canceled", "queued"]),
            ("drop_new", ["queued", "canceled"]),
        ],
    )
    def test_a_key_keeps_jobs_apart(self, alice, path, when_busy, states):
        body = SUBMITS[path] | {"concurrency": {"key": "main", "when_busy": when_busy}}
        made = [ok(alice.post(path, body), 201) for _ in range(2)]
        assert [row["concurrency_key"] for row in made] == ["main", "main"]
        assert list(Job.objects.order_by("pk").values_list("state", flat=True)) == states
        assert ok(alice.post(path, SUBMITS[path]), 201)["concurrency_key"] is None

    @pytest.mark.parametrize(
        "wrong",
        [{}, {"key": ""}, {"key": "x" * 201}, {"key": "a", "when_busy": "x"}, {"key": "a", "x": 1}, "a", []],
        ids=str,
    )
    def test_a_key_that_makes_no_sense_is_refused(self, alice, path, wrong):
        code = "unknown_field" if "x" in wrong else "invalid"
        refused(lambda: alice.post(path, SUBMITS[path] | {"concurrency": wrong}), 400, code)
