"""Events: pages of envelopes, and the stream of the dashboard."""
