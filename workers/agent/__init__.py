"""The worker process: claims jobs, runs them by an engine, and reports their results over HTTP."""
