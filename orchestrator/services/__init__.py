"""The life of a job, and who may have one: each operation is one function and one transaction."""
