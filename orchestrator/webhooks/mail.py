"""Sends notifications as mail, in plain text, by Django's mail settings."""

import logging
import smtplib
import time
from datetime import UTC, datetime
from typing import Any

import orjson
from django.core.mail import EmailMessage

from orchestrator.webhooks.models import MAX_SENTENCE_LENGTH
from orchestrator.webhooks.sender import TryResult
from runtime_jobs.control_characters import escape_controls

log = logging.getLogger(__name__)


def send_mail(recipients: tuple[str, ...], body: str) -> TryResult:
    """Send the notification in a body to all recipients. Never raises.

    Args:
        recipients: The addresses. Each gets a mail that does not name the others.
        body: The envelope of the notification.
    """
    started_at, began = datetime.now(UTC), time.monotonic()
    sentence, is_success = f"The mail was handed to the mail server for {len(recipients)} recipients.", True
    try:
        subject, text = mail_text(orjson.loads(body))
        EmailMessage(subject, text, bcc=list(recipients)).send()
    except smtplib.SMTPResponseException as error:
        sentence, is_success = f"The mail server answered {error.smtp_code}.", False
    except smtplib.SMTPRecipientsRefused:
        sentence, is_success = "The mail server refused all recipients.", False
    except OSError as error:
        log.warning("a mail could not be sent: %s", type(error).__name__)
        sentence, is_success = "The mail server cannot be reached, or closed the connection.", False
    except Exception:
        log.exception("a mail could not be sent")
        sentence, is_success = "The mail failed unexpectedly; the log of the dispatcher has the error.", False
    milliseconds = round((time.monotonic() - began) * 1000)
    return TryResult(started_at, milliseconds, is_success, sentence[:MAX_SENTENCE_LENGTH])


def mail_text(envelope: dict[str, Any]) -> tuple[str, str]:
    """Return the subject and the text of a notification. Both contain no control characters, whatever the event has.

    Args:
        envelope: The envelope of the notification.
    """
    payload = envelope["payload"]
    last = payload["lastEvent"]
    number = payload["count"]
    times = "" if number == 1 else f" ({number} times)"
    subject = f"[{envelope['tenant']}] {last['eventType']}{times}"
    lines = [
        f"Rule:     {payload['rule']['name']}",
        f"Event:    {last['eventType']}",
        f"Number:   {number}",
        f"First:    {payload['firstEventAt']}",
        f"Last:     {payload['lastEventAt']}",
        f"Job type: {last['jobType'] or '-'}",
        f"Job:      {last['jobId'] or '-'}",
        "",
        "The last event:",
        orjson.dumps(last["payload"], option=orjson.OPT_INDENT_2).decode(),
    ]
    one_line = " ".join(escape_controls(subject).split())
    return one_line[:200], "\n".join(escape_controls(line) for line in lines) + "\n"
