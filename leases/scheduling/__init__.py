"""Scheduling: claims, lanes, limits, fair shares and submit quotas."""
