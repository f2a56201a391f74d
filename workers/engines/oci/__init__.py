"""The engine that runs commands in container images."""
