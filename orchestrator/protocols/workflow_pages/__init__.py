"""The pages of workflow runs."""
