"""The engine for machines that forbid user namespaces."""
