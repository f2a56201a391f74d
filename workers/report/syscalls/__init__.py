"""The meaning of traced system calls."""
