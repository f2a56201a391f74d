"""Concurrent deliveries on real connections."""

import functools

import pytest

from orchestrator.protocols.github.models import WebhookDelivery
from runtime_jobs.models import Batch, Job
from tests.orchestrator.protocols.github.conftest import deliver, new_secret, payload, ready
from tests.orchestrator.protocols.native.test_concurrent_requests import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.mark.parametrize("redelivered", [True, False], ids=["one delivery", "one event"])
def test_two_at_once_make_one_run(redelivered):
    secret = new_secret(ready())
    for round_ in range(5):
        body = payload("push.branch") | {"after": f"{round_ + 1:040x}"}
        names = [f"delivery-{round_}-{0 if redelivered else place}" for place in range(4)]
        calls = [
            functools.partial(deliver, "push.branch", secret, body=body, changes={"X-GitHub-Delivery": name})
            for name in names
        ]
        answers = together(*calls)
        assert sorted(answer.status_code for answer in answers) == [201, 202, 202, 202]
        assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert (
        Job.objects.count() == Batch.objects.count() == WebhookDelivery.objects.filter(outcome="created").count() == 5
    )


def test_a_new_secret_and_a_delivery_at_once_are_one_after_the_other():
    project = ready()
    old = new_secret(project)
    answer, new = together(functools.partial(deliver, "push.branch", old), functools.partial(new_secret, project))
    assert answer.status_code in {201, 401}
    assert deliver("ping", new).status_code == 202
    assert deliver("ping", old).status_code == 401
