"""The pages of workers, pools and leases."""
