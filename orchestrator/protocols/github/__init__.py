"""Webhook of GitHub: `/api/v1/webhooks/github`."""
