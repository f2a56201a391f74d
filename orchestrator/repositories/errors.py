"""Errors of repositories. Their text is for the person who configured the repository or wrote the workflow."""


class RepositoryError(Exception):
    """A repository cannot be mirrored or read. Nothing has changed."""


class GitFailed(RepositoryError):
    """Git ended with an error. The text is the end of its own message, without credentials and paths."""


class GitLimitExceeded(RepositoryError):
    """Git exceeded a limit of time, output or disk space, and was ended."""


class InvalidOrigin(RepositoryError):
    """The origin of a repository is not permitted by the settings."""


class MirrorMissing(RepositoryError):
    """The repository has no mirror yet: its first copy has not succeeded."""


class CommitNotFound(RepositoryError):
    """The mirror does not have the commit."""


class RefNotFound(RepositoryError):
    """The mirror does not have the branch or tag."""


class PathNotFound(RepositoryError):
    """The commit has no regular file, or no folder, at the path."""


class FileTooLarge(RepositoryError):
    """The file is larger than the caller reads."""
