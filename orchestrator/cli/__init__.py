"""The command line `stella`: a client of document 004 that needs the standard library and `requests` only."""
