"""Messages of runners: `/api/v1/internal/`."""
