"""Jobs: `/v1/runtime/jobs`, `/v1/jobs`."""
