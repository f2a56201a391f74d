"""The server's records of pools and workers, their tokens, and what a claim offers."""
