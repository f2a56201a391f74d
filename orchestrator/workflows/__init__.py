"""Workflow runs and the repositories that contain their files: what starts runs, and which file is read for it."""
