"""Runs the command line as `python -m orchestrator.cli`."""

import sys

from orchestrator.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
