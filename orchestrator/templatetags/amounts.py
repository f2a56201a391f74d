"""Template filters for amounts and codes."""

from django import template

from orchestrator.ingest.formatting import format_bytes, format_seconds

register = template.Library()
register.filter("in_bytes", format_bytes)
register.filter("humanize", lambda code: str(code).replace("_", " "))
register.filter("in_seconds", format_seconds)
