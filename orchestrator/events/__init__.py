"""The feed of events: pages, search, the reader of a process, and its channels."""
