"""The calls of a runner about a job that it has claimed (contract 2.2 to 2.5)."""
