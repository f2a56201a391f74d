"""Template filters for amounts."""

from django import template

from orchestrator.ingest.formatting import bytes_in_words, seconds_in_words

register = template.Library()
register.filter("in_bytes", bytes_in_words)
register.filter("in_seconds", seconds_in_words)
