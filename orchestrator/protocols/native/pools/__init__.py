"""Pools of workers: `/v1/pools`."""
