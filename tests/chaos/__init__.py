"""A whole installation under fire. In tests/, because it is no part of the product and stands on the tests' factories."""
