"""Signals of the life of a job. `orchestrator.apps` has the table of their receivers.

They are sent within the operation. A receiver that has work of its own to do registers it by `UnitOfWork.after_commit`.
"""

from django.dispatch import Signal

# A job has reached a final state. Arguments: uow, job, now. A receiver returns values for the final event, or None.
job_ended = Signal()
# A cancel of a job was requested. Arguments: uow, job.
cancel_requested = Signal()
