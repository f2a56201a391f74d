"""The API of document 004: jobs, quotas, limits, sources and the dashboard, in its own words."""
