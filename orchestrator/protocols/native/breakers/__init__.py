"""Circuit breakers and their incidents: `/v1/breakers`, `/v1/incidents`."""
