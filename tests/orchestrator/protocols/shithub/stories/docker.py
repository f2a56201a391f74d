"""Replaces `docker` for a runner: `run … IMAGE COMMAND…` and `kill NAME`. bubblewrap holds the command.

It has no images: a command finds the programs of the machine, a workspace of its own at /workspace, and nothing else that
it could write. A container ends with the process that started it.
"""

import os
import signal
import sys
from pathlib import Path

# The folder where each running container has a file with the id of its process. The runner hands the variable on.
FOLDER = "CONTAINER_FOLDER"
FLAGS = {"--rm", "--read-only"}
PASSED = ("PATH", "LANG")
READ_ONLY = ("/usr", "/etc", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64")


def main(arguments: list[str]) -> int:
    """Execute a command line, and return the exit code unless a container takes the place of the process."""
    match arguments:
        case ["run", *rest]:
            _run(rest)
        case ["kill", name]:
            return _kill(name)
    print(f"docker of the tests: {arguments} is none of its commands", file=sys.stderr)  # noqa: T201 a program
    return 125


def _run(arguments: list[str]) -> None:
    options, names = {"--workdir": "/", "--network": "none"}, []
    while arguments[0].startswith("-"):
        option, has_value, value = arguments.pop(0).partition("=")
        if option not in FLAGS:
            value = value if has_value else arguments.pop(0)
            options[option] = value
            if option == "--env":
                names.append(value)
    _image, *command = arguments
    mount = dict(part.split("=", 1) for part in options["--mount"].split(","))
    variables = [name for name in (*PASSED, *names) if name in os.environ]
    words = ["bwrap", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    for place in map(Path, READ_ONLY):
        if place.is_symlink():
            words += ["--symlink", str(place.readlink()), str(place)]
        elif place.exists():
            words += ["--ro-bind", str(place), str(place)]
    words += ["--bind", mount["src"], mount["dst"], "--chdir", options["--workdir"]]
    words += ["--unshare-pid", "--unshare-ipc", "--die-with-parent", "--clearenv"]
    words += ["--unshare-net"] if options["--network"] == "none" else []
    words += [word for name in variables for word in ("--setenv", name, os.environ[name])]
    (Path(os.environ[FOLDER]) / options["--name"]).write_text(str(os.getpid()))
    os.execvp("bwrap", [*words, "--", *command])


def _kill(name: str) -> int:
    try:
        os.kill(int((Path(os.environ[FOLDER]) / name).read_text()), signal.SIGKILL)
    except (OSError, ValueError):
        print(f"docker of the tests: {name} does not run", file=sys.stderr)  # noqa: T201 a program
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
