"""Messages of a worker about the steps of a workflow job that it has leased."""
