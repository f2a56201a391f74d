"""The scheduler process: leader election and periodic tasks."""
