"""Jobs: models, states, events, errors and job types."""
