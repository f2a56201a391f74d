"""Lists the commands of `manage.py`: those of this product with one line each, then the names of the frameworks'."""

import textwrap

import django
from django.core.management import get_commands, load_command_class

APP = "orchestrator"
# In the order in which an installation needs them; others of the product follow by name.
FIRST = (
    *("up", "demo", "seed", "serve", "runclock", "runhousekeeping", "rundispatcher", "runworker"),
    *("grantlease", "audit", "checkpoint", "prune", "backup", "restore"),
)
WIDTH = 80


def command_overview() -> str:
    """Return the text of `manage.py help`."""
    django.setup()
    commands = get_commands()
    ours = {name for name, app in commands.items() if app == APP}
    names = [name for name in FIRST if name in ours] + sorted(ours - set(FIRST))
    lines = ["Usage: .venv/bin/python manage.py COMMAND [OPTIONS]   (COMMAND --help lists the options)", ""]
    lines += [f"  {name:<17} {first_sentence(name)}" for name in names]
    others = ", ".join(sorted(set(commands) - ours))
    lines += ["", "Commands of Django and its packages:", ""]
    lines += textwrap.wrap(others, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def first_sentence(name: str) -> str:
    """Return the first sentence of a command's help."""
    return load_command_class(APP, name).help.partition(". ")[0].removesuffix(".")
