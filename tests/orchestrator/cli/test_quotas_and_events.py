"""`stella quota` and `stella events` on a real server."""

import json

import pytest

from orchestrator.cli.client import StellaClient
from tests.factories import OrganizationFactory, api_token
from tests.live_server import eventually
from tests.orchestrator.protocols.stella.requests import claim, complete

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
SUBMIT = ("job", "submit", "--type", "scan")


def value_of(finished):
    assert finished.code == 0, finished.err
    return json.loads(finished.out)


def test_a_quota_is_set_and_shown_and_removed(stella):
    words = ("quota", "set", "--tenant", "acme-corp", "--type", "scan")
    changed = value_of(stella.run(*words, "--max-active", "4", "--max-per-hour", "100", "--burst", "5", "-o", "json"))
    assert [changed[name] for name in ("id", "maxActive", "maxPerHour", "burst")] == ["acme-corp:scan", 4, 100, 5]
    shown = value_of(stella.run("quota", "show", "--tenant", "acme-corp", "--type", "scan", "-o", "json"))
    assert shown == [changed]
    removed = value_of(stella.run(*words, "--max-active", "none", "--reason", "no longer needed", "-o", "json"))
    assert [removed[name] for name in ("maxActive", "maxPerHour")] == [None, 100]
    line = next(line for line in stella.run("quota", "show").out.splitlines() if line.startswith("acme-corp:scan "))
    assert line.split() == ["acme-corp:scan", "0", "-", "0", "100", "5", "-", "-"]


def test_the_quota_of_all_types_is_the_default(stella):
    changed = value_of(stella.run("quota", "set", "--tenant", "acme-corp", "--max-active", "0", "-o", "json"))
    assert (changed["id"], changed["maxActive"]) == ("acme-corp:*", 0)


def test_a_quota_that_another_request_changes_meanwhile_is_refused(stella, monkeypatch):
    """The change carries the version that was read."""
    words = ("quota", "set", "--tenant", "acme-corp", "--type", "scan", "--max-active")
    read = StellaClient.get

    def read_before_another_change(client, path, query=None):
        found = read(client, path, query)
        client.call("PATCH", path, {"maxActive": 1}, headers={"If-Match": found.headers["ETag"]})
        return found

    with monkeypatch.context() as patch:
        patch.setattr(StellaClient, "get", read_before_another_change)
        assert stella.run(*words, "2").code == 77
    assert value_of(stella.run("quota", "show", "--type", "scan", "-o", "json"))[0]["maxActive"] == 1


def test_only_operators_set_emergency_limits(stella):
    found = stella.run("quota", "set", "--tenant", "acme-corp", "--emergency-max-active", "2")
    assert found.code == 77
    assert "operator" in found.err


def page_with_events(stella, *options):
    """The first page of events, or None if it is empty."""
    page = value_of(stella.run("events", *options, "-o", "json"))
    return page if page["results"] else None


def types_after(stella, place):
    """The types of the events after a place."""
    listed = stella.run("events", "--after", place)
    assert listed.code == 0, listed.err
    return [line.split()[1] for line in listed.out.splitlines()]


def test_events_are_listed_in_order_and_continue_after_their_place(stella, worker):
    job_id = stella.run(*SUBMIT).out.strip()
    page = eventually(lambda: page_with_events(stella, "--job-id", job_id))  # a transaction elsewhere delays events
    assert [event["eventType"] for event in page["results"]] == ["job.queued"]
    complete(claim(worker))
    assert eventually(lambda: "job.completed" in types_after(stella, page["place"])[-1:])
    assert "job.queued" not in types_after(stella, page["place"])
    later = stella.run("events", "--after", page["place"])
    assert later.err.startswith("place: ")
    limited = value_of(stella.run("events", "--limit", "1", "-o", "json"))
    assert [len(limited["results"]), limited["hasMore"]] == [1, True]
    failures = value_of(stella.run("events", "--event-type", "job.failed,job.canceled", "-o", "json"))
    assert failures["results"] == []


def test_events_are_followed_as_they_happen(stella):
    place = value_of(stella.run("events", "-o", "json"))["place"]
    process = stella.start("events", "--follow", "--after", place, "--limit", "2", "-o", "json")
    ids = {stella.run(*SUBMIT).out.strip() for _ in range(2)}
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert {json.loads(line)["jobId"] for line in out.splitlines()} == ids


def test_following_ends_when_the_time_is_up(stella):
    assert stella.run("events", "--follow", "--timeout", "0.5").code == 124


def test_a_tenant_that_is_not_visible_is_66(stella):
    OrganizationFactory(slug="other")
    assert stella.run("events", "--tenant", "other").code == 66
    assert stella.run("quota", "show", "--tenant", "other").code == 66
    reader = api_token(OrganizationFactory(slug="other"), ("orch:read",))
    assert stella.run("quota", "set", "--tenant", "other", "--max-active", "1", STELLA_TOKEN=reader).code == 77
