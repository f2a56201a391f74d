"""Tasks of evidence in the scheduler process: links of operator events each round, checkpoints each hour or by request.

A key or a folder that is missing must not end the leadership of this process: leases would then expire late. It is
logged, and tried again after a minute.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from orchestrator.core.row_batches import RowRunner
from orchestrator.evidence.checkpoint_files import file_checkpoints
from orchestrator.evidence.checkpoints import are_checkpoints_due, write_checkpoints
from orchestrator.evidence.operator_chains import link_operator_events
from orchestrator.evidence.signing_keys import SigningKeyError

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 60.0


def chain_operator_events(_: RowRunner) -> int:
    """Link the operator events that are new since the last round."""
    return link_operator_events()


class CheckpointTask:
    """Writes checkpoints when they are due, one step a round, and then their files."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._tried_again_at = 0.0

    def advance(self) -> int:
        """Write what is due. Returns the number of checkpoints."""
        if self._monotonic() < self._tried_again_at:
            return 0
        try:
            written = write_checkpoints()[0] if are_checkpoints_due() else []
            file_checkpoints()
        except (SigningKeyError, OSError):
            self._tried_again_at = self._monotonic() + RETRY_SECONDS
            log.exception("no checkpoint can be written; it is tried again after %d seconds", RETRY_SECONDS)
            return 0
        return len(written)
