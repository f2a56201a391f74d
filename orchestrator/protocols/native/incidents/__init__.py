"""Incidents and incident mode: `/v1/incidents`, `/v1/incident-modes`."""
