"""Contains Django's database backend of this project; Django imports its `base` module."""
