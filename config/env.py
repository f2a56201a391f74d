"""Reads settings from the environment. The value of NAME may be in the file that NAME_FILE names."""

import math
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured
from environ.fileaware_mapping import FileAwareMapping

TRUE = {"true", "yes", "on", "1", "ok", "y", "t"}
FALSE = {"false", "no", "off", "0", "n", "f"}


def finite(value: Any) -> Any:
    """Return the value as a float. Raises ValueError for a text that is no number, and for infinity and NaN."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def is_loopback_url(url: str) -> bool:
    """Return whether the host of a URL is this machine: a loopback address, or localhost."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class SecretFiles(FileAwareMapping):
    """Reads NAME_FILE, without the newline that editors and `echo` add at the end of a file."""

    def __getitem__(self, key: str) -> str:
        try:
            value: str = super().__getitem__(key)
        except (OSError, UnicodeDecodeError) as error:
            raise ImproperlyConfigured(f"{key}_FILE: cannot read {self.env[f'{key}_FILE']}: {error}") from None
        return value.removesuffix("\n") if self.env.get(f"{key}_FILE") else value


class Env(environ.Env):
    """Reads typed values, and rejects a bad one by the name of its variable (ImproperlyConfigured)."""

    ENVIRON = SecretFiles()

    def int(self, var: str, default: Any = environ.Env.NOTSET) -> int:
        return int(self._parsed(super().int, var, default, "a whole number is needed"))

    def float(self, var: str, default: Any = environ.Env.NOTSET) -> float:
        # django-environ's own parser drops the characters that it does not know: 1e3 would be 13, and 50% would be 50.
        def parse(name: Any, *, default: Any) -> Any:
            return finite(self.str(name, default=default))

        return float(self._parsed(parse, var, default, "a number is needed"))

    def json(self, var: str, default: Any = environ.Env.NOTSET) -> Any:
        try:
            return super().json(var, default=default)
        except ValueError as error:  # without the value: the address of a mirror may have a token
            raise ImproperlyConfigured(f"{var}: JSON is needed ({error})") from None

    def bool(self, var: str, default: Any = environ.Env.NOTSET) -> bool:
        text = self.str(var, default="").strip().lower()
        if text and text not in TRUE | FALSE:
            raise ImproperlyConfigured(f"{var}={text!r}: yes or no is needed")
        return text in TRUE if text else bool(default)

    def _parsed(self, parse: Callable[..., Any], var: str, default: Any, requirement: str) -> Any:
        try:
            return parse(var, default=default)
        except ValueError:
            raise ImproperlyConfigured(f"{var}={self.str(var)!r}: {requirement}") from None
