"""The pages that check a password: log-in of operators and of members, change of one's own password."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import admin
from django.contrib.auth import forms, views
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse_lazy
from unfold.forms import AdminOwnPasswordChangeForm
from unfold.forms import AuthenticationForm as ConsoleForm

from orchestrator.http.auth.login_attempts import TooManyAttempts, counted_attempt
from orchestrator.http.auth.password_hashing import HashingBusy
from orchestrator.http.errors.error_views import login_required_error, too_many_attempts, wants_page

REFUSAL = (
    "The name or the password is wrong, or this account may not log in here. "
    "After several failures no attempt is accepted for some minutes."
)
RETRY_AFTER = "orchestrator.login_retry_after"  # in the request's META, in seconds: the middleware below answers 429


def _refuse(request: HttpRequest | None, refusal: TooManyAttempts) -> ValidationError:
    """Return the form's error, which is the same for known and unknown names. The status follows in the middleware."""
    if request is not None:
        request.META[RETRY_AFTER] = refusal.retry_after
    return ValidationError(too_many(refusal.retry_after), code="throttled")


def too_many(seconds: int) -> str:
    """Return the message of a throttled log-in."""
    when = f"{seconds} seconds" if seconds < 100 else f"{-(-seconds // 60)} minutes"
    return f"Too many attempts to log in. Try again in {when}."


class Throttled(forms.AuthenticationForm):
    """Counts each attempt before the password is hashed. A refused attempt costs no hash."""

    error_messages = {"invalid_login": REFUSAL, "inactive": REFUSAL}

    def clean(self) -> dict[str, Any]:
        username, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if username is None or not password:
            return super().clean()
        try:
            with counted_attempt(self.request, username) as attempt:
                cleaned: dict[str, Any] = super().clean()
                attempt.succeed()
        except TooManyAttempts as refusal:
            raise _refuse(self.request, refusal) from None
        return cleaned


class OperatorLogin(Throttled, ConsoleForm):
    """Logs staff in to the admin."""

    def confirm_login_allowed(self, user: Any) -> None:
        if not (user.is_active and user.is_staff):
            raise ValidationError(REFUSAL, code="invalid_login")


class Login(views.LoginView):
    """Logs in every user with an account: members of organizations read the runs of those."""

    template_name = "login.html"
    authentication_form = Throttled
    redirect_authenticated_user = True


class OwnPasswordChangeForm(AdminOwnPasswordChangeForm):
    """Counts the old password as an attempt to log in, so that a stolen session cannot guess it quickly."""

    def __init__(self, *args: Any, request: HttpRequest, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.request = request

    def clean_old_password(self) -> str:
        try:
            with counted_attempt(self.request, self.user.get_username()) as attempt:
                old: str = super().clean_old_password()
                attempt.succeed()
        except TooManyAttempts as refusal:
            raise _refuse(self.request, refusal) from None
        return old


class OwnPasswordChange(views.PasswordChangeView):
    """Replaces the admin's page, which has no setting for its form. Its address comes before the admin's own."""

    form_class = OwnPasswordChangeForm
    success_url = reverse_lazy("admin:password_change_done")

    def get_form_kwargs(self) -> dict[str, Any]:
        return super().get_form_kwargs() | {"request": self.request}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**admin.site.each_context(self.request), **kwargs)


def change_own_password(request: HttpRequest) -> HttpResponseBase:
    """Serve the page to staff."""
    request.current_app = admin.site.name  # the admin's templates reverse with it
    return OwnPasswordChange.as_view()(request)


def page_login_required(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Require a session: redirect browsers to the log-in, answer 401 to clients that accept JSON only."""
    protected = login_required(view)

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_authenticated and not wants_page(request):
            return login_required_error(request)
        response: HttpResponse = protected(request, *args, **kwargs)
        return response

    return wrapper


class LoginThrottleMiddleware:
    """Answers 429 with Retry-After where a password was not hashed because of a limit."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        seconds = request.META.get(RETRY_AFTER)
        if seconds is not None:
            response.status_code = 429
            response["Retry-After"] = str(seconds)
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer pages without a count of their own, such as an operator's change of another's password."""
        if not isinstance(error, HashingBusy):
            return None
        return too_many_attempts(request, error.retry_after)
