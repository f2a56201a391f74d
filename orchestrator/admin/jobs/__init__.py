"""The pages of jobs, batches and runs."""
