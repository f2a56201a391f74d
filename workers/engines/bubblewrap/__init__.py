"""The default engine: namespaces by bubblewrap."""
