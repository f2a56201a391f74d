"""Template filters for amounts."""

from django import template

from orchestrator.ingest.formatting import format_bytes, format_seconds

register = template.Library()
register.filter("in_bytes", format_bytes)
register.filter("in_seconds", format_seconds)
