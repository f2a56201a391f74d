"""Outgoing webhooks (Standard Webhooks 1.0.0) and notifications: endpoints, signatures, deliveries and their tries.

`orchestrator.processes.dispatcher` turns events into deliveries and sends them. No request waits for a receiver.
"""
