"""Filters of one column: the typed value, one of a few values, or several."""

from leases.models import Breaker
from tests.factories import HardwareSpecFactory, PoolFactory, WorkerFactory
from tests.orchestrator.admin.pages import address
from workers.models import HardwareSpec, Worker


def found(client, model, query):
    response = client.get(f"{address(model, 'changelist')}?{query}")
    assert response.status_code == 200
    return {str(row) for row in response.context["cl"].result_list}


def test_the_value_that_is_typed(olga):
    for slug in ("north", "south"):
        WorkerFactory(slug=f"{slug}-1", pool=PoolFactory(slug=slug))
    assert found(olga, Worker, "pool__slug=north") == {"north-1"}
    assert found(olga, Worker, "pool__slug=nor") == set()
    assert found(olga, Worker, "pool__slug=") == {"north-1", "south-1"}


def test_one_of_a_few_values(olga):
    HardwareSpecFactory(slug="one", architecture="x86_64")
    HardwareSpecFactory(slug="two", architecture="aarch64")
    assert found(olga, HardwareSpec, "architecture=aarch64") == {"two"}
    assert found(olga, HardwareSpec, "architecture=vax") == {"one", "two"}


def test_several_of_a_few_values(olga):
    for state in ("open", "closed", "half_open"):
        Breaker.objects.create(org_slug=state, job_type="steps", state=state)
    page = address(Breaker, "changelist")
    rows = olga.get(f"{page}?state=open&state=half_open&state=melted").context["cl"].result_list
    assert {row.org_slug for row in rows} == {"open", "half_open"}
