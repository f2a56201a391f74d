"""The job types: their policies, columns and serialized forms. The services know no type.

A further type is a specification class, a policy and a line in `JOB_TYPES`.
"""

from runtime_jobs.specs.registry import JOB_TYPES, JobSpec, JobType
from runtime_jobs.specs.runtime import RUNTIME, RuntimeSpec, execution_of, runtime_policy
from runtime_jobs.specs.source import RepositorySource, source_of
from runtime_jobs.specs.steps import STEPS, Cache, Pattern, StepsSpec, steps_policy

__all__ = [
    "JOB_TYPES",
    "RUNTIME",
    "STEPS",
    "Cache",
    "JobSpec",
    "JobType",
    "Pattern",
    "RepositorySource",
    "RuntimeSpec",
    "StepsSpec",
    "execution_of",
    "runtime_policy",
    "source_of",
    "steps_policy",
]
