"""The rules of suspicious activity."""
