"""HTTP machinery that all APIs share."""
