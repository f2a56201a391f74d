"""The heartbeat of a runner, with which it claims jobs (contract 2.1)."""
