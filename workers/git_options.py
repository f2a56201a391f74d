"""The options with which the server and the worker run git on repositories that anybody may have written."""

from typing import Final

# Faults that old programs left in honest repositories: in the dates and names of commits, which nothing here reads, and
# in the notation of a mode. Git reports the first and the last ones as warnings, which `fsckObjects` makes errors. The
# faults that lead a checkout astray stay errors: `.gitmodules` as a link, `git~1`, `..`, entries that occur twice.
HARMLESS_FAULTS: Final = (
    "zeroPaddedFilemode",
    "badDate",
    "badDateOverflow",
    "badEmail",
    "badName",
    "badTimezone",
    "missingEmail",
    "missingNameBeforeEmail",
    "missingSpaceBeforeDate",
    "missingSpaceBeforeEmail",
    "zeroPaddedDate",
    "multipleAuthors",
    "nulInCommit",
)
GIT_OPTIONS: Final = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.askPass=",
    "credential.helper=",
    "protocol.ext.allow=never",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "transfer.fsckObjects=true",
    "fetch.fsckObjects=true",
    *(f"fetch.fsck.{fault}=ignore" for fault in HARMLESS_FAULTS),
    "http.followRedirects=false",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=30",
    "safe.bareRepository=explicit",
    "gc.auto=0",
    "maintenance.auto=false",
    "init.templateDir=",
    "init.defaultBranch=main",
)
