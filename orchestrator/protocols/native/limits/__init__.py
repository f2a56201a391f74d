"""Limits, pauses, throttles and submit quotas: `/v1/limits`, `/v1/quotas`."""
