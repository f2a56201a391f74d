"""Workflow files of document 003: parsing, expressions, triggers and schedules. Pure: no module here makes a query."""
