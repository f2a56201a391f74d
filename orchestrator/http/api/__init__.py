"""Parsing, validation, pagination and OpenAPI that all HTTP APIs share."""
