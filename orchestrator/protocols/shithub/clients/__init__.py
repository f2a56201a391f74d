"""The calls of users: cancel a job, and run a workflow again (contract 2.7, 2.8)."""
