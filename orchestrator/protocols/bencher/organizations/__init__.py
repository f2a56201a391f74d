"""Organizations: the claim of one that has no owner."""
