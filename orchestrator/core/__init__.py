"""The ground floor: the unit of work, and what every other folder of the server may use."""
