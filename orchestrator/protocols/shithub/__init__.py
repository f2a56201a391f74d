"""The API of document 003: runners of workflow jobs, and the calls of users about jobs and runs."""
