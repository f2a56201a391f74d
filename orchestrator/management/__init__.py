"""Contains the commands of `manage.py`."""
