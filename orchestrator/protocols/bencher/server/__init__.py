"""Documents that every command of Bencher's command line reads first: version of the API, address of the web pages."""
