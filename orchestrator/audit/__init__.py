"""Invariants of the database, and the audit that checks them."""
