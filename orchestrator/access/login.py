"""The ways in, for operators and for members: slow for those who guess, and with one answer, whatever was wrong."""

import hashlib
from typing import Any

from django.contrib.auth import forms, views
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from unfold.forms import AuthenticationForm as ConsoleForm

from orchestrator.access.addresses import neighbourhood_of

WINDOW_SECONDS = 300
PER_NAME_AND_ADDRESS = 5
PER_ADDRESS = 30
PER_NAME = 100  # from anywhere: high, so that a stranger does not lock an operator out in passing
REFUSAL = "That did not work. Check the name and the password; after several failures there is a pause of some minutes."


class Throttled(forms.AuthenticationForm):
    """Counts failures in the cache. While one count is full nothing is asked of the password hasher either."""

    error_messages = {"invalid_login": REFUSAL, "inactive": REFUSAL}

    def clean(self) -> dict[str, Any]:
        counts = _counts(self.request, self.cleaned_data.get("username", ""))
        if any(cache.get(key, 0) >= limit for key, limit in counts.items()):
            raise ValidationError(REFUSAL, code="invalid_login")
        try:
            return super().clean()
        except ValidationError:
            for key in counts:
                cache.add(key, 0, timeout=WINDOW_SECONDS)
                cache.incr(key)
            raise


class OperatorLogin(Throttled, ConsoleForm):
    """The console's door, for staff."""

    def confirm_login_allowed(self, user: Any) -> None:
        if not (user.is_active and user.is_staff):
            raise ValidationError(REFUSAL, code="invalid_login")


class Login(views.LoginView):
    """The door for everybody with an account: members of organizations look at the runs of those."""

    template_name = "login.html"
    authentication_form = Throttled
    redirect_authenticated_user = True


def _counts(request: HttpRequest | None, username: str) -> dict[str, int]:
    address = neighbourhood_of(request) if request else ""
    name = username.casefold()
    return {
        _key("both", address, name): PER_NAME_AND_ADDRESS,
        _key("address", address): PER_ADDRESS,
        _key("name", name): PER_NAME,
    }


def _key(*parts: str) -> str:
    """Hashed: a name may hold what a cache's keys may not."""
    return f"login:{hashlib.sha256(repr(parts).encode()).hexdigest()}"
