"""The same cast as for the native API: what is proved here is true of every endpoint, and shown on its endpoints."""

import pytest

from orchestrator.http.observability.metrics import database
from tests.orchestrator.protocols.native.conftest import alice, organization, wendy, worker

__all__ = ["alice", "organization", "wendy", "worker"]


@pytest.fixture(autouse=True)
def fresh_numbers():
    """Forget the numbers that /metrics keeps from another test's database."""
    database.forget()
