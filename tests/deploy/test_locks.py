"""The lists of pinned packages name all that MoLink runs with, by checksum, and no machine."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {name: (ROOT / "molink" / name).read_text() for name in ("requirements.lock", "torch.lock")}
ENTRY = re.compile(
    r"^([a-z0-9][a-z0-9._-]*)==(\S+)([^\n]*\\\n(?: {4}--hash=sha256:[0-9a-f]{64}.*\n?)+)", re.M
)


def pinned(text: str) -> dict[str, set[Version]]:
    """Versions by name; networkx, say, has another for newer Pythons."""
    found: dict[str, set[Version]] = {}
    for name, version, _ in ENTRY.findall(text):
        found.setdefault(name, set()).add(Version(version))
    return found


ALL = pinned("".join(LOCKS.values()))


@pytest.mark.parametrize(
    "wanted", [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
)
def test_every_dependency_is_pinned_to_a_version_that_the_project_takes(wanted):
    requirement = Requirement(wanted)
    assert ALL[requirement.name], "run `make lock`"
    assert all(version in requirement.specifier for version in ALL[requirement.name])


def test_versions_are_those_that_the_tests_run_on():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tried = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for name, version in tried.items():
        known = ALL.get(name.lower().replace("_", "-"))
        assert known is None or Version(version) in known, f"{name}: run `make lock`"


@pytest.mark.parametrize("lock", LOCKS)
def test_nothing_is_without_a_checksum_or_from_elsewhere(lock):
    text = LOCKS[lock]
    rest = ENTRY.sub("", text)
    assert all(line.startswith("#") for line in rest.splitlines() if line), rest
    assert not re.search(r"://|/opt/|file:|-index-url|find-links", text)


def test_torch_has_a_list_of_its_own():
    assert {"torch", "triton"} <= pinned(LOCKS["torch.lock"]).keys()
    assert not pinned(LOCKS["torch.lock"]).keys() & pinned(LOCKS["requirements.lock"]).keys()


def test_the_installer_takes_nothing_that_is_not_in_them():
    script = (ROOT / "deploy" / "install.sh").read_text()
    installs = re.findall(r"^\s+pip install (.*)$", script, re.M)
    assert len(installs) == 4
    by_version = [line for line in installs if "--index-url" in line]
    own = [line for line in installs if "$source" in line]
    assert (len(by_version), own) == (
        1,
        ['--force-reinstall --no-deps --no-build-isolation "$source"'],
    )
    others = set(installs) - {*by_version, *own}
    assert all(line.startswith("--require-hashes ") for line in others)


def test_what_the_tests_run_on_installs_on_the_oldest_python():
    """Such as Debian 12's 3.11.2."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE))
    installed = {one.name: one.metadata for one in metadata.distributions() if one.name in pins}
    wanted = {name: about.get("Requires-Python") or "" for name, about in installed.items()}
    assert len(wanted) > 50
    assert not {name for name, range_ in wanted.items() if "3.11.0" not in SpecifierSet(range_)}
