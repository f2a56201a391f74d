"""The job types: their policies, columns and serialized forms. The services know no type.

A further type is a specification class and an entry in `JOB_TYPES`.
"""

from runtime_jobs.specs.actions import ACTIONS, ActionsSpec, ActionsStep
from runtime_jobs.specs.oci import OCI, OciSpec, config_of, spec_label, spec_uuid_of
from runtime_jobs.specs.payload import PACK_RUN, PAYLOAD_TYPES, PayloadSpec, public_digest
from runtime_jobs.specs.readiness import JobReadiness
from runtime_jobs.specs.registry import JOB_TYPES, JobPolicy, JobSpec, JobType, configured_policy
from runtime_jobs.specs.runtime import RUNTIME, RuntimeSpec, execution_of
from runtime_jobs.specs.source import RepositorySource, source_of
from runtime_jobs.specs.steps import STEPS, Cache, Pattern, StepsSpec

__all__ = [
    "ACTIONS",
    "JOB_TYPES",
    "OCI",
    "PACK_RUN",
    "PAYLOAD_TYPES",
    "RUNTIME",
    "STEPS",
    "ActionsSpec",
    "ActionsStep",
    "Cache",
    "JobPolicy",
    "JobReadiness",
    "JobSpec",
    "JobType",
    "OciSpec",
    "Pattern",
    "PayloadSpec",
    "RepositorySource",
    "RuntimeSpec",
    "StepsSpec",
    "config_of",
    "configured_policy",
    "execution_of",
    "public_digest",
    "source_of",
    "spec_label",
    "spec_uuid_of",
]
