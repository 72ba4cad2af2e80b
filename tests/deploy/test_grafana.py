"""The dashboard for Grafana asks only for metrics that there are, by labels that they have."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from molink.api.metrics.cluster_metrics import FIGURES
from molink.api.metrics.route import Metrics
from tests.api.metrics.examples import observed_service, scraped

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "molink.json"

NAME = re.compile(r"\b(?:molink|gen_ai|process)_[a-z0-9_]+\b(?!\s*\()")
LABELS_OF_A_SUM = re.compile(r"by \(([^)]*)\)")


def targets():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target for panel in panels for target in panel.get("targets", ())]


TARGETS = targets()


@pytest.fixture(scope="module")
def samples():
    """Label names of each sample of a busy cluster, by its name."""
    text = scraped(Metrics(observed_service()))
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["expr"][:60])
def test_every_metric_exists_with_the_labels_that_are_used(target, samples):
    by = {name for names in LABELS_OF_A_SUM.findall(target["expr"]) for name in names.split(", ")}
    metrics = set(NAME.findall(target["expr"])) - by
    assert metrics and metrics <= samples.keys()
    wanted = by | set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    assert wanted <= set.union(*(samples[name] for name in metrics))


def test_every_figure_of_the_cluster_is_on_the_dashboard():
    asked = {name for target in TARGETS for name in NAME.findall(target["expr"])}
    hidden = {"molink_stage_weights_bytes", "molink_link_messages_total"}
    hidden |= {f"molink_handover_{one}" for one in ("linked", "blocks_total", "seconds_total")}
    assert {figure.name for figure in FIGURES} - asked == hidden


def test_panels_have_numbers_of_their_own_and_do_not_overlap():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
