"""Results of a project: `/v0/projects/{project}/reports`, `…/testbeds` and `…/metrics`."""
