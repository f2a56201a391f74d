"""A job on a lease, and times around its deadlines."""

from datetime import timedelta

import pytest

from tests.factories import claimed, submitted
from tests.suite_functions import audit_findings


@pytest.fixture(autouse=True)
def audited(request):
    """Check the invariants after each test of the operations."""
    yield
    if {"db", "transactional_db"} & set(request.fixturenames):
        assert audit_findings(chains=True) == []


@pytest.fixture
def leased(db):
    """A job on an active lease."""
    submitted()
    return claimed()


@pytest.fixture
def granted(db):
    """A job on a lease that its worker has not acknowledged yet."""
    submitted()
    return claimed(acknowledge=True)


def after(at, seconds: float):
    return at + timedelta(seconds=seconds)
