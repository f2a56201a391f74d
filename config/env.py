"""Reads settings from the environment; the value of NAME may stand in the file that NAME_FILE names."""

import environ
from environ.fileaware_mapping import FileAwareMapping


class SecretFiles(FileAwareMapping):
    """As its parent, without the newline that editors and `echo` put at the end of a file."""

    def __getitem__(self, key: str) -> str:
        value: str = super().__getitem__(key)
        return value.removesuffix("\n") if self.env.get(f"{key}_FILE") else value


class Env(environ.Env):
    """django-environ's reader on these variables and files."""

    ENVIRON = SecretFiles()
