"""The smart HTTP protocol of git, for reading: `/{owner}/{repository}.git` (contract of shithub, 1.5)."""
