"""Contains one module for each command of `manage.py`."""
