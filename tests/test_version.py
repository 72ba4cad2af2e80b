"""What a build calls itself, by tags and commits."""

import os
import subprocess

import pytest

from molink import __version__
from molink import version as version_module
from molink.version import build_version, version, version_of


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ("v0.2.0-0-g1a2b3c4", "0.2.0"),
        ("v0.2.0-0-g1a2b3c4-dirty", "0.2.0+0.g1a2b3c4.dirty"),
        ("v0.2.0-3-g1a2b3c4", "0.2.0+3.g1a2b3c4"),
        ("v0.2.0rc1-12-g1a2b3c4-dirty", "0.2.0rc1+12.g1a2b3c4.dirty"),
        ("1a2b3c4", f"{__version__}+g1a2b3c4"),
        ("1a2b3c4-dirty", f"{__version__}+g1a2b3c4.dirty"),
        ("nothing that git says", __version__),
    ],
)
def test_tags_and_commits_make_a_version_that_packages_may_have(described, expected):
    from packaging.version import Version

    assert version_of(described) == expected
    assert str(Version(expected)) == expected


def test_a_checkout_is_asked_for_its_commit(tmp_path, monkeypatch):
    def git(*words):
        own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, env=os.environ | own)

    monkeypatch.setattr(version_module, "ROOT", tmp_path)
    assert build_version() == __version__
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    assert build_version().startswith(f"{__version__}+g")
    git("tag", "v9.1.0")
    assert build_version() == "9.1.0"
    git("commit", "-q", "--allow-empty", "-m", "two")
    assert build_version().startswith("9.1.0+1.g")
    version.cache_clear()
    assert version() == build_version()


def test_an_installation_without_a_checkout_has_kept_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(version_module, "ROOT", tmp_path)
    monkeypatch.setattr(version_module.metadata, "version", lambda name: f"{name} 1.2.3")
    version.cache_clear()
    assert version() == "molink 1.2.3"
    version.cache_clear()
