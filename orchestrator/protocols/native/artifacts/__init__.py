"""Artifacts and caches: announced by the holder of a lease, uploaded and downloaded by signed addresses."""
