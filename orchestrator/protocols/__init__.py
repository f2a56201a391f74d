"""HTTP interfaces, one package each. They never import one another."""
