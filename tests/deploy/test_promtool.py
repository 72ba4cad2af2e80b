"""What is for Prometheus and Grafana, read by Prometheus's own tool."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from molink.api.metrics.route import Metrics
from tests.api.metrics.examples import answered, observed_service, scraped
from tests.deploy.test_grafana import TARGETS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
RULES = ROOT / "deploy" / "prometheus"
KEY_FILE = "/etc/prometheus/molink.key"

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool (apt-get install prometheus)"
)


def promtool(*arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], input=given, capture_output=True, text=True)


def block_of_page(start: str) -> str:
    """The YAML of the page on metrics that begins so."""
    found = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = [one for one in found if one.startswith(start)]
    return block


def test_what_is_scraped_has_no_fault_and_keeps_to_the_rules_of_names():
    service = observed_service()
    metrics = Metrics(service)
    answered(service.request_log)
    checked = promtool("check", "metrics", given=scraped(metrics))
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_fault_would_be_noticed():
    assert promtool("check", "metrics", given="molink_up_total{ 1\n").returncode != 0
    assert promtool("check", "rules", given="groups: [{ rules: 1 }]").returncode != 0


def test_the_configuration_of_the_page_is_one(tmp_path):
    key = tmp_path / "molink.key"
    key.write_text("molink-sk-1")
    text = block_of_page("scrape_configs:")
    assert KEY_FILE in text
    config = tmp_path / "prometheus.yml"
    config.write_text(text.replace(KEY_FILE, str(key)))
    assert promtool("check", "config", config).returncode == 0


def test_the_alerts_are_rules_and_ring_when_they_should():
    checked = promtool("check", "rules", RULES / "molink.rules.yml")
    assert checked.returncode == 0 and "10 rules found" in checked.stdout
    tried = promtool("test", "rules", RULES / "molink.tests.yml")
    assert tried.returncode == 0, tried.stdout + tried.stderr


def test_every_query_of_the_dashboard_is_one(tmp_path):
    """As a recorded rule each; Grafana fills in the interval."""
    queries = [target["expr"].replace("$__rate_interval", "1m") for target in TARGETS]
    rules = [{"record": f"query_{place}", "expr": one} for place, one in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "grafana", "rules": rules}]}))
    checked = promtool("check", "rules", file)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(queries)} rules found" in checked.stdout
