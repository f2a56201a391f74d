"""The types of jobs: how each sets its policy, fills its columns and looks on the wire. The verbs know no type.

A further type is a class of specs, a policy and a line in `TYPES`."""

from runtime_jobs.specs.runtime import RUNTIME, RuntimeSpec, execution_of, runtime_policy
from runtime_jobs.specs.source import Source, source_of
from runtime_jobs.specs.steps import STEPS, Cache, Pattern, StepsSpec, steps_policy
from runtime_jobs.specs.types import TYPES, JobType, Spec

__all__ = [
    "RUNTIME",
    "STEPS",
    "TYPES",
    "Cache",
    "JobType",
    "Pattern",
    "RuntimeSpec",
    "Source",
    "Spec",
    "StepsSpec",
    "execution_of",
    "runtime_policy",
    "source_of",
    "steps_policy",
]
