"""Jobs of a project: `/v0/projects/{project}/jobs`."""
