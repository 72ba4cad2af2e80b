"""A setting is declared once: as a field of a group, from which its options are made."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from molink.config.setting import settings_in
from molink.config.settings import ServeSettings, UpSettings
from molink_scheduler.head.settings import RingTerms

ROOT = Path(__file__).parents[2]
FOLDERS = ("molink/cli", "molink/config", "molink/terminal")
MAKERS = {"setting", "option", "shown_option"}
"""Functions whose first argument is an option."""

OTHER_MEANING = {
    "molink/cli/client/bench.py": {  # What a load counts as good.
        *("--ttft-target-s", "--tpot-target-ms", "--tbt-target-ms", "--tbt-percentile"),
    },
    "molink/cli/relay.py": {"--host", "--port"},  # Where a relay listens.
    "molink/cli/models/plan.py": {"--nodes", "--drafter"},  # A file of PCs; whether a tail drafts.
    "molink/terminal/tables.py": {"--data-dir"},  # Of commands that read a coordinator's folder.
}
"""Options of other commands that have a setting's name and are none of its."""

TOLD_TO_STAGES = {
    *("micro_batch_count", "span_tokens", "replay_log_bytes", "prefix_cache"),
    "draft_width_max",
}
"""Settings that are fields of `RingTerms` too, which the core and the wire know."""


def options_in(source: str) -> Iterator[str]:
    """Options that are declared in a module, by name."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *_]):
                if name in MAKERS and isinstance(first, ast.Constant):
                    yield str(first.value).split()[0]


def test_no_setting_is_an_option_in_two_files() -> None:
    settings = {
        setting.option for group in (ServeSettings, UpSettings) for _, setting in settings_in(group)
    }
    found: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            path = file.relative_to(ROOT).as_posix()
            own = settings - OTHER_MEANING.get(path, set())
            for option in own & set(options_in(file.read_text(encoding="utf-8"))):
                found.setdefault(option, set()).add(path)
    assert found.keys() == settings
    assert not {option: files for option, files in found.items() if len(files) > 1}


def test_commands_share_groups_and_no_settings() -> None:
    """A setting of both commands is the same object, but for where each listens, and what rings
    with roles are made of."""
    serve, up = (
        {one.name: setting for one, setting in settings_in(group)}
        for group in (ServeSettings, UpSettings)
    )
    twice = {name for name in serve.keys() & up.keys() if serve[name] is not up[name]}
    assert twice == {"host", "port", "roles"}


def test_only_what_stages_are_told_is_a_field_twice() -> None:
    settings = {one.name for group in (ServeSettings, UpSettings) for one, _ in settings_in(group)}
    assert {one.name for one in fields(RingTerms)} & settings == TOLD_TO_STAGES


def test_every_maker_of_options_is_found() -> None:
    source = """
one = setting("--one N", 1, "Count.")
two = click.option("--two", "also", help="More.")
three = shown_option("--three")(command)
four = other("--four")
"""
    assert list(options_in(source)) == ["--one", "--two", "--three"]
