"""The alerts for Prometheus ask for figures that there are, as far as can be told without its tool
(`test_promtool` has it say when they ring)."""

import re
from pathlib import Path

import yaml

from molink.findings.finding import KINDS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
FOREIGN = {"up", "process_start_time_seconds"}


def rules():
    (group,) = yaml.safe_load((FOLDER / "molink.rules.yml").read_text())["groups"]
    return group["rules"]


def test_each_alert_asks_for_a_metric_of_the_page_and_says_what_to_do():
    page = (ROOT / "docs" / "metrics.md").read_text()
    for rule in rules():
        names = set(re.findall(r"\b((?:molink|gen_ai|process)_\w+|up)\b(?=[{\[ )])", rule["expr"]))
        assert names, rule["expr"]
        for name in names - FOREIGN:
            assert f"`{name.removesuffix('_bucket')}`" in page, name
        assert {"summary", "action"} == set(rule["annotations"])


def test_the_tests_of_the_alerts_name_findings_that_there_are_and_every_alert():
    text = (FOLDER / "molink.tests.yml").read_text()
    assert set(re.findall(r'finding="(\w+)"', text)) <= set(KINDS)
    assert {rule["alert"] for rule in rules()} <= set(re.findall(r"alertname: (\w+)", text))
