"""Projects, and the branches, benchmarks and measures that their reports name: read only."""
