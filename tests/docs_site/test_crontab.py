"""Lines for cron do what the page says, once cron has read them as crontab(5) has it."""

import re
import subprocess

import pytest

from tests.docs_site.pages import PAGES

LINES = [
    line
    for page in PAGES
    for line in page.read_text(encoding="utf-8").splitlines()
    if re.match(r" *([*0-9]+ ){5}", line)
]


def cron_command(line: str) -> str:
    """What cron gives to the shell: a `%` ends it, unless there is a backslash before it."""
    command = re.split(r"(?<!\\)%", line.split(maxsplit=5)[5])[0]
    return command.replace("\\%", "%")


def test_there_is_one_for_backups():
    assert any("molink backup" in line for line in LINES)


@pytest.mark.parametrize("line", LINES)
def test_cron_finds_the_program_and_names_the_day(tmp_path, line):
    program = tmp_path / ".local" / "bin" / "molink"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    said = subprocess.run(
        ["/bin/sh", "-c", cron_command(line)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.fullmatch(r"backup FOLDER/\d{4}-\d\d-\d\d\.backup\n", said)
