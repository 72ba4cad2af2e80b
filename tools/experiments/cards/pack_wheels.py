"""Packs what a machine without network lacks to run MoLink and its tests of a card.

    python -m tools.experiments.cards.pack_wheels --out DIR

Wheels of all that MoLink and `tests/gpu` need and that is not there, in the versions that MoLink is
locked to, for the Python and the system of that machine. What is there one lists once, with `pip
freeze` on that machine (`--there FILE`); without a list it is a machine with torch's CUDA build and
what comes with that. There, with nothing but the checkout and the folder:

    python -m pip install --no-index --no-deps DIR/*.whl
    PYTHONPATH=.:agent:scheduler:sim python -m tools.experiments.cards.ten_minutes --out OUT

A version that is there and too old is packed as well: transformers, mostly.
"""

import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import click
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from molink.errors import UserError
from tools.experiments.harness.experiment import experiment

__all__ = ["main", "missing", "needed"]

ROOT = Path(__file__).parents[3]

TESTS = ("pytest", "pytest-asyncio", "iniconfig", "pluggy", "pygments", "packaging")
"""What `tests/gpu` runs with, beside what MoLink needs."""

THERE = (
    "torch",
    "triton",
    "numpy",
    "sympy",
    "networkx",
    "mpmath",
    "jinja2",
    "markupsafe",
    "fsspec",
    "filelock",
    "typing-extensions",
)
"""Comes with torch, whatever the version: a card's own build of it is never replaced."""

LINUX = {"sys_platform": "linux", "platform_system": "Linux", "extra": ""}

GLIBC_OLDEST = 5
OLD_TAGS = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
"""What wheels for 2.17, 2.12 and 2.5 were called."""

PINNED = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;]+)(?: *; *([^\\\n]+))?")


@experiment
@click.option("--python", default="3.12", show_default=True, help="Of that machine.")
@click.option("--glibc", default=31, show_default=True, help="Of 2.N, the system's at most.")
@click.option("--there", type=click.Path(exists=True, path_type=Path), help="Its `pip freeze`.")
@click.option("--list", "only_list", is_flag=True, help="Print what would be packed.")
def main(out: Path, python: str, glibc: int, there: Path | None, only_list: bool) -> None:
    """Download wheels into OUT and print their number and size."""
    wanted = missing(needed(), {} if there is None else pinned(there.read_text()))
    pins = [f"{name}=={version}" for name, version in wanted.items()]
    if only_list:
        click.echo("\n".join(pins))
        return
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--python-version", python, "--dest", str(out)]
    command += [part for tag in _platforms(glibc) for part in ("--platform", tag)]
    if subprocess.run([*command, *pins], check=False).returncode:
        raise UserError("not all wheels were found: what pip said stands above")
    wheels = sorted(out.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels)
    click.echo(f"{len(wheels)} wheels, {size / 1e6:.1f} MB, in {out}")


def needed() -> dict[str, str]:
    """Names and versions of all that MoLink and its tests of a card need, torch's own left out."""
    locks = (ROOT / "molink" / name for name in ("requirements.lock", "extras.lock"))
    locked = pinned("".join(lock.read_text() for lock in locks))
    tests = pinned((ROOT / "constraints.txt").read_text())
    versions = {name: tests[name] for name in TESTS} | locked
    return {name: versions[name] for name in sorted(versions.keys() - set(THERE))}


def missing(wanted: dict[str, str], there: dict[str, str]) -> dict[str, str]:
    """What of that is not there, or older than MoLink asks for; or than any of it asks for."""
    least = _least(wanted)
    return {
        name: version
        for name, version in wanted.items()
        if name not in there or Version(there[name]) < least.get(name, Version("0"))
    }


def pinned(text: str) -> dict[str, str]:
    """Names and versions in lines of `name==version`, of those that a Linux takes."""
    lines = (PINNED.match(line) for line in text.splitlines())
    return {
        canonicalize_name(found[1]): found[2]
        for found in lines
        if found and (found[3] is None or Marker(found[3]).evaluate(LINUX))
    }


def _least(wanted: dict[str, str]) -> dict[str, Version]:
    """The oldest version that MoLink, or anything that it needs, takes of each."""
    least = dict[str, Version]()
    for name in ("molink", *wanted):
        for text in requires(name) or ():
            one = Requirement(text)
            if one.marker is not None and not one.marker.evaluate({"extra": ""}):
                continue
            for spec in (spec for spec in one.specifier if spec.operator in (">=", "==", "~=")):
                bound = Version(spec.version.removesuffix(".*"))
                other = canonicalize_name(one.name)
                least[other] = max(bound, least.get(other, bound))
    return least


def _platforms(glibc: int) -> list[str]:
    """Tags that a PC's system takes, as pip wants them told one by one."""
    tags = [f"manylinux_2_{minor}" for minor in range(glibc, GLIBC_OLDEST - 1, -1)]
    return [f"{tag}_x86_64" for tag in (*tags, *OLD_TAGS)]


if __name__ == "__main__":
    main()
