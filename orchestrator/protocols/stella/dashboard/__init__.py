"""The dashboard: `/api/dashboard`."""
