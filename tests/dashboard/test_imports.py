"""The dashboard is a light client: it starts quickly and runs where nothing else of MoLink does."""

import subprocess
import sys

HEAVY = {"torch", "transformers", "numpy", "zmq", "pydantic", "msgpack", "cryptography"}


def loaded_by(code):
    asked = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(asked.stdout.split())


def test_all_of_it_loads_nothing_of_the_coordinator():
    loaded = loaded_by(
        "import importlib, pkgutil, molink.dashboard as room\n"
        "names = [one.name for one in pkgutil.walk_packages(room.__path__, 'molink.dashboard.')]\n"
        "assert len(names) > 20, names\n"
        "[importlib.import_module(name) for name in names]"
    )
    assert not HEAVY & loaded
    rooms = {name.split(".")[1] for name in loaded if name.startswith("molink.")}
    own = {"dashboard", "findings"}
    assert rooms == own | {"client", "errors", "json_object", "printable", "report"}


def test_without_a_terminal_there_is_no_textual():
    loaded = loaded_by(
        "import molink.dashboard.sources, molink.dashboard.plain, molink.dashboard.actions"
    )
    assert "textual" not in loaded


def test_the_command_is_light_before_it_runs():
    loaded = loaded_by("import molink.cli.main")
    assert not {"textual", "aiohttp", "molink.dashboard"} & loaded
