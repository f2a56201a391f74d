"""Benchmark results of document 002: stored output of jobs, adapters that read it, reports and their metrics."""
