"""Parsing shares one serializer per class between all threads of a process."""

import threading

import pytest
from rest_framework.exceptions import ValidationError

from orchestrator.http.api import fields
from orchestrator.http.api.fields import parse
from orchestrator.protocols.native.jobs.serializers import SubmitAnyJobInput
from orchestrator.protocols.native.leases.serializers import CompleteInput
from tests.factories import SUBMIT_ANY_BODY

THREADS = 8
ROUNDS = 150


def attempt(number: int, index: int) -> str | None:
    """Parse one body of this thread; return what differs from the expected result, or None."""
    name = f"job-{number}-{index}"
    spec = SUBMIT_ANY_BODY["spec"] | {"name": name, "environment": {"N": name}}
    validated = parse(SubmitAnyJobInput, SUBMIT_ANY_BODY | {"spec": spec, "trigger": {"kind": "manual", "actor": name}})
    parsed = SubmitAnyJobInput.job_spec(validated)
    if (validated["trigger"]["actor"], parsed.name, parsed.environment) != (name, name, {"N": name}):
        return f"{name}: {validated}"
    try:
        parse(SubmitAnyJobInput, SUBMIT_ANY_BODY | {"spec": spec, name: 1})
    except ValidationError as error:
        if list(error.detail) != [name]:
            return f"{name}: {error.detail}"
    else:
        return f"{name}: accepted an unknown field"
    result = parse(CompleteInput, {"result": {"status": "succeeded", "exit_code": number, "counts": {name: index}}})
    expected = (number, {name: index})
    return None if (result["result"]["exit_code"], result["result"]["counts"]) == expected else f"{name}: {result}"


def test_eight_threads_parse_different_bodies_at_once():
    fields._shared_serializer.cache_clear()  # so that the threads also race for the first use
    barrier, problems = threading.Barrier(THREADS), []

    def run(number: int) -> None:
        barrier.wait(timeout=60)
        try:
            problems.extend(problem for index in range(ROUNDS) if (problem := attempt(number, index)))
        except Exception as error:  # noqa: BLE001 reported below
            problems.append(repr(error))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert problems == []


@pytest.mark.parametrize("value", ["7", 7.0, True])
def test_a_shared_serializer_keeps_nothing_of_an_invalid_body(value):
    with pytest.raises(ValidationError):
        parse(CompleteInput, {"result": {"status": "succeeded", "exit_code": value}})
    assert parse(CompleteInput, {"result": {"status": "succeeded"}})["result"]["exit_code"] is None
