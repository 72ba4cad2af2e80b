"""The Compose file and what it mounts, read by the tools of each. No container is started."""

import os
import re
import shutil
import subprocess

import pytest
import yaml

from molink.api.body import BODY_BYTES_MAX
from molink.api.openai.batches.uploads import FILE_BYTES_MAX
from molink.cli.main import cli
from tests.docs_site.pages import ROOT

FOLDER = ROOT / "deploy" / "compose"
VARIABLE = re.compile(r"\$\{(\w+):\?[^}]*\}")


def settings() -> dict[str, str]:
    lines = (FOLDER / "example.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def services() -> dict[str, dict[str, object]]:
    text = VARIABLE.sub(lambda match: settings()[match[1]], (FOLDER / "compose.yaml").read_text())
    return yaml.safe_load(text)["services"]


def needs(tool: str, package: str) -> pytest.MarkDecorator:
    found = shutil.which(tool)
    return pytest.mark.skipif(found is None, reason=f"no {tool} (apt-get install {package})")


def test_every_file_that_is_mounted_is_there():
    mounted = [
        source
        for service in services().values()
        for source in (one.split(":")[0] for one in service["volumes"])
        if source.startswith(".") and source != settings()["MOLINK_WATCH_KEY_FILE"]
    ]
    assert len(mounted) == 6
    assert not [one for one in mounted if not (FOLDER / one).exists()]


def test_prometheus_has_the_alerts_at_the_place_that_it_reads():
    (place,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["rule_files"]
    mounted = [one.split(":")[:2] for one in services()["prometheus"]["volumes"]]
    assert ["../prometheus/molink.rules.yml", place] in mounted


def test_the_coordinators_command_is_one():
    name, *words = services()["coordinator"]["command"]
    command = cli.get_command(None, name)
    assert command.make_context(name, list(words)).params["public_host"] == "molink.example.org"


def test_only_what_others_are_to_reach_is_open():
    opened = {name: one.get("ports", []) for name, one in services().items()}
    assert opened == {
        "coordinator": ["8001-8003:8001-8003"],
        "caddy": ["80:80", "443:443"],
        "prometheus": [],
        "grafana": ["127.0.0.1:3000:3000"],
    }


def test_proxies_take_the_largest_bodies_that_the_api_takes():
    caddy = re.search(r"max_size (\d+)MiB", (FOLDER / "Caddyfile").read_text())
    nginx = re.search(r"client_max_body_size (\d+)m;", (ROOT / "docs" / "keys.md").read_text())
    for found in (caddy, nginx):
        assert int(found[1]) * 2**20 > max(BODY_BYTES_MAX, FILE_BYTES_MAX)


@needs("docker-compose", "docker-compose")
def test_compose_reads_it(tmp_path):
    command = ["docker-compose", "--project-directory", str(FOLDER)]
    command += ["--env-file", str(FOLDER / "example.env"), "-f", str(FOLDER / "compose.yaml")]
    read = subprocess.run([*command, "config"], capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    assert yaml.safe_load(read.stdout)["services"].keys() == services().keys()


@needs("caddy", "caddy")
def test_caddy_reads_its_file(tmp_path):
    command = ["caddy", "validate", "--adapter", "caddyfile", "--config", str(FOLDER / "Caddyfile")]
    places = os.environ | settings() | {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    read = subprocess.run(command, env=places, capture_output=True, text=True, check=False)
    assert read.returncode == 0 and "Valid configuration" in read.stdout, read.stderr


@needs("promtool", "prometheus")
def test_prometheus_reads_its_file(tmp_path):
    key = tmp_path / "molink.key"
    key.write_text("molink-sk-1")
    config = tmp_path / "prometheus.yml"
    text = (FOLDER / "prometheus.yml").read_text()
    text = text.replace("/etc/prometheus/molink.key", str(key))
    rules = str(FOLDER.parent / "prometheus" / "molink.rules.yml")
    config.write_text(text.replace("/etc/prometheus/molink.rules.yml", rules))
    command = ["promtool", "check", "config", str(config)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
