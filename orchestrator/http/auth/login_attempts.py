"""Counts of log-in attempts, shared by all processes through PostgreSQL."""

from django.db import models


class LoginAttempts(models.Model):
    """The attempts within one window: of a client network, of a user name, or of a user name in one network.

    `key` is a keyed hash. A typed name is never stored: it may be a password in the wrong field.
    """

    key = models.BinaryField(max_length=32, primary_key=True)
    attempts = models.IntegerField()
    window_ends_at = models.DateTimeField()

    class Meta:
        app_label = "orchestrator"
        db_table = "login_attempts"
        indexes = [models.Index(fields=["window_ends_at"], name="login_attempts_by_age")]

    def __str__(self) -> str:
        return f"{self.attempts} until {self.window_ends_at}"
