"""The same cast as for the native API: what is proved here is true of every endpoint, and shown on its endpoints."""

from tests.native.conftest import alice, organization, wendy, worker

__all__ = ["alice", "organization", "wendy", "worker"]
