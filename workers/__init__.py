"""The workers: the server's records of them in `registry`, and the worker process in the other packages."""
