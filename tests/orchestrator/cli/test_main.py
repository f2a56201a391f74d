"""The frame of all commands: settings, output, packaging. Without a server."""

import ast
import io
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from config.paths import BASE_DIR
from orchestrator.cli import event_commands
from orchestrator.cli.arguments import duration, timestamp
from orchestrator.cli.connection import find_access
from orchestrator.cli.errors import CommandFailed
from orchestrator.cli.main import build_parser
from orchestrator.cli.output import Printer, printable
from tests.orchestrator.cli.scripted_server import respond, scripted

TOKEN = "rto_api_test"


def access(**variables):
    options = {"server": variables.pop("server", None), "token_file": variables.pop("token_file", None)}
    return find_access(**options, plain_http=variables.pop("plain_http", False), environment=variables)


# --- server and token -------------------------------------------------------------------------------------------------


def test_options_win_over_the_environment(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("one\n")
    second.write_text("two\n")
    assert access(STELLA_TOKEN="three").url == "http://127.0.0.1:8000"
    assert access(STELLA_TOKEN="three", token_file=str(first)).token == "one"
    assert access(STELLA_TOKEN="three", STELLA_TOKEN_FILE=str(second)).token == "three"
    assert access(STELLA_TOKEN_FILE=str(second)).token == "two"
    found = access(STELLA_TOKEN="three", STELLA_SERVER="https://a.example/", server="https://b.example/base/")
    assert found.url == "https://b.example/base"


def test_the_token_is_in_a_file_of_the_user_by_default(tmp_path):
    folder = tmp_path / "stella"
    folder.mkdir()
    (folder / "token").write_text(f"{TOKEN}\n")
    assert access(XDG_CONFIG_HOME=str(tmp_path)).token == TOKEN


@pytest.mark.parametrize(
    "url",
    ["http://orchestrator.example", "http://10.0.0.1:8000", "http://localhost.example", "http://127.0.0.1.example"],
)
def test_a_token_is_not_sent_to_another_machine_in_plain_text(url):
    with pytest.raises(CommandFailed, match="plain text"):
        access(STELLA_TOKEN=TOKEN, server=url)
    assert access(STELLA_TOKEN=TOKEN, server=url, plain_http=True).url == url


@pytest.mark.parametrize("url", ["http://127.0.0.2:8000", "http://localhost:1", "http://[::1]:8000"])
def test_this_machine_needs_no_tls(url):
    assert access(STELLA_TOKEN=TOKEN, server=url).url == url


@pytest.mark.parametrize(
    "url",
    [
        "orchestrator.example",
        "ftp://a.example",
        "https://",
        "https://u:p@a.example",
        "https://a.example?x=1",
        "http://[",
    ],
)
def test_another_address_is_none(url):
    with pytest.raises(CommandFailed, match="no address"):
        access(STELLA_TOKEN=TOKEN, server=url)


@pytest.mark.parametrize("token", [" ", "a b", "a\nX-Header: b", "ö", "a" * 5000])
def test_what_is_no_token_becomes_no_header(token):
    with pytest.raises(CommandFailed) as refused:
        access(STELLA_TOKEN=token)
    assert refused.value.exit_code == 64
    assert token.strip() == "" or token not in refused.value.message


def test_a_missing_token_says_where_to_put_one(tmp_path):
    with pytest.raises(CommandFailed, match=r"STELLA_TOKEN.*stella/token") as refused:
        access(XDG_CONFIG_HOME=str(tmp_path))
    assert refused.value.exit_code == 64
    with pytest.raises(CommandFailed) as refused:
        access(token_file=str(tmp_path / "missing"))
    assert refused.value.exit_code == 66


# --- options and output -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("10m", 600), ("2h", 7200), ("1d", 86400)])
def test_durations(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1w", "1 m", "999999999d", "\u0661"])
def test_wrong_durations(text):
    with pytest.raises(Exception, match="no duration"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-11-01", "2025-11-01T00:00:00Z"),
        ("2025-11-01T08:30", "2025-11-01T08:30:00Z"),
        ("2025-11-01T08:30:00+02:00", "2025-11-01T06:30:00Z"),
        ("2025-11-01T08:30:00.25Z", "2025-11-01T08:30:00.250000Z"),
    ],
)
def test_timestamps(text, expected):
    assert timestamp(text) == expected


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_names_of_others_do_not_steer_a_terminal():
    assert printable("a\x1b[2Jb\n\u202ec\x9b") == "a\\x1b[2Jb\\x0a\\u202ec\\x9b"
    out = io.StringIO()
    Printer(is_json=False, out=out).table(["NAME", "N"], [["x\ty", None]])
    assert out.getvalue() == "NAME    N\nx\\x09y  -\n"


def test_a_log_has_its_colors_in_a_terminal_and_no_other_sequences():
    text = "\x1b[31mred\x1b[0m\tand\x1b[2J\x1b]0;title\x07\r\n"
    out, file = Terminal(), io.StringIO()
    Printer(is_json=False, out=file).log(text)
    assert file.getvalue() == text
    printer = Printer(is_json=False, out=out)
    for character in text:
        printer.log(character)
    assert out.getvalue() == "\x1b[31mred\x1b[0m\tand\\x1b[2J\\x1b]0;title\\x07\r\n"


def test_ctrl_c_is_130(shell, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(event_commands, "follow_events", interrupted)
    assert shell.run("events", "--follow", STELLA_TOKEN=TOKEN).code == 130


@pytest.mark.parametrize("place", ["-lFwS1ClBeKGdmGYxVLpPw", "--FwS1ClBeKGdmGYxVLpPw", "-_-_S1ClBeKGdmGYxVLpP-"])
def test_a_place_that_begins_with_a_hyphen_is_no_option(shell, place):
    page = json.dumps({"results": [], "next": None, "place": place}).encode()
    with scripted(lambda handler, _: respond(handler, 200, page)) as server:
        shell.variables = {"STELLA_SERVER": server.url, "STELLA_TOKEN": TOKEN}
        found = shell.run("events", "--after", place, "--limit", "7")
    assert (found.code, found.err) == (0, f"place: {place}\n")
    assert [path for _, path, _ in server.requests] == [f"/api/events?after={place}&limit=7"]


def test_an_option_after_after_is_no_place(shell):
    found = shell.run("events", "--after", "--follow", STELLA_TOKEN=TOKEN)
    assert (found.code, "expected one argument" in found.err) == (64, True)


def test_a_reader_that_ends_early_gets_no_traceback(shell):
    reading, writing = os.pipe()
    os.close(reading)
    with scripted(lambda handler, _: respond(handler, 200, b'{"results": [], "next": null}')) as server:
        shell.variables = {"STELLA_SERVER": server.url, "STELLA_TOKEN": TOKEN}
        process = shell.start("job", "list", stdout=writing)
        os.close(writing)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, "")


# --- packaging --------------------------------------------------------------------------------------------------------


def test_the_command_line_needs_no_part_of_the_server():
    """The command line starts in a fraction of a second, and on a machine without Django."""
    program = "import json, sys, orchestrator.cli.main; print(json.dumps(sorted(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], cwd=BASE_DIR, capture_output=True, text=True, check=True)
    loaded = json.loads(found.stdout)
    assert {"django", "cryptography"} & set(loaded) == set()
    ours = {"orchestrator", "runtime_jobs", "leases", "workers", "config"}
    foreign = [name for name in loaded if name.partition(".")[0] in ours and not name.startswith("orchestrator.cli")]
    assert foreign == ["orchestrator"]


def test_the_installed_script_starts_the_entry_point_from_any_folder(tmp_path):
    entry = tomllib.loads((BASE_DIR / "pyproject.toml").read_text())["project"]["scripts"]["stella"]
    module, function = entry.split(":")
    assert f"from {module} import {function}" in (BASE_DIR / "deploy" / "stella").read_text()
    checkout = tmp_path / "a checkout"
    (checkout / ".venv" / "bin").mkdir(parents=True)
    python = checkout / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (checkout / "orchestrator").symlink_to(BASE_DIR / "orchestrator")
    script = checkout / ".venv" / "bin" / "stella"
    script.write_bytes((BASE_DIR / "deploy" / "stella").read_bytes())
    script.chmod(0o755)
    link = tmp_path / "stella"
    link.symlink_to(script)
    (tmp_path / "requests.py").write_text("raise SystemExit(99)\n")
    for command in (script, link, Path("a checkout/.venv/bin/stella")):
        found = subprocess.run([command, "job"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (found.returncode, found.stderr[:8]) == (64, "stella: "), found


def test_a_token_is_no_option():
    """Every account of a machine can read the command lines of all processes."""
    assert "--token" not in {option for command in all_parsers().values() for option in command}


def all_parsers():
    """The options of each command, by its words."""
    found = {}

    def walk(parser, words):
        children = [
            action for action in parser._actions if hasattr(action, "choices") and isinstance(action.choices, dict)
        ]
        if not children:
            found[" ".join(words)] = [option for action in parser._actions for option in action.option_strings]
        for action in children:
            for name, child in action.choices.items():
                walk(child, [*words, name])

    walk(build_parser(), [])
    return found


@pytest.mark.parametrize("command", all_parsers())
def test_the_manual_page_has_each_command_with_its_options(command):
    page = (BASE_DIR / "docs" / "cli.md").read_text()
    _, found, section = page.partition(f"### stella {command}\n")
    assert found, f"docs/cli.md has no section about {command}"
    section = section.partition("\n### ")[0]
    common = {"-h", "--help", "-o", "--format", "--server", "--token-file", "--plain-http"}
    missing = [option for option in all_parsers()[command] if option not in common and f"`{option}" not in section]
    assert missing == []


def test_the_manual_page_has_all_exit_codes():
    tree = ast.parse((BASE_DIR / "orchestrator" / "cli" / "errors.py").read_text())
    codes = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ExitCode")
    numbers = [node.value.value for node in codes.body if isinstance(node, ast.Assign)]
    page = (BASE_DIR / "docs" / "cli.md").read_text()
    assert [number for number in numbers if f"\n| {number} |" not in page] == []
    assert os.EX_USAGE == 64
