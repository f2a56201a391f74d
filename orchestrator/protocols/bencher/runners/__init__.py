"""Runners: `/v0/runners`, their keys and the hardware specs that they provide."""
