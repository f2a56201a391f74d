"""The API of the OCI distribution specification under `/v2/`: a repository for each project."""
