"""The pages of limits, breakers and incidents."""
