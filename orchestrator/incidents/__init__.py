"""Incidents, circuit breakers and the incident mode."""
