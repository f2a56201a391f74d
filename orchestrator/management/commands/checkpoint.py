"""`manage.py checkpoint`: writes the checkpoints that are due now, without the scheduler process."""

from typing import Any

from django.core.management.base import CommandError

from orchestrator.evidence.checkpoint_files import file_checkpoints
from orchestrator.evidence.checkpoints import write_checkpoints
from orchestrator.evidence.operator_chains import link_operator_events
from orchestrator.evidence.signing_keys import SigningKeyError
from orchestrator.management.base import ServerCommand


class Command(ServerCommand):
    """Writes a checkpoint of each organization in which something has ended or was changed."""

    help = "Signs the jobs and operator events since the last checkpoints, and writes copies into CHECKPOINT_DIR."

    def handle(self, *_: Any, **_options: Any) -> None:
        written, is_complete = 0, False
        try:
            while link_operator_events():
                pass
            while not is_complete:
                checkpoints, is_complete = write_checkpoints()
                written += len(checkpoints)
            while file_checkpoints():
                pass
        except (SigningKeyError, OSError) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{written} checkpoints were written.")
