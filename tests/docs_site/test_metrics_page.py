"""The page on metrics names every metric that there is, and no other."""

import re
from pathlib import Path

from molink.api.metrics.route import Metrics
from tests.api.metrics.examples import answered, observed_service

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

NAME = re.compile(r"\b(?:molink|gen_ai)_[a-z_]+\b")
LABELS = {"gen_ai_token_type"}


def metrics():
    service = observed_service()
    found = Metrics(service)
    answered(service.request_log)
    found.look()
    families = found.registry.collect()
    ends = {"counter": "_total"}
    names = {f"{one.name}{ends.get(one.type, '')}" for one in families}
    return {name for name in names if NAME.fullmatch(name)}


def test_every_metric_has_its_line():
    tables = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert set(NAME.findall("\n".join(line.split(" | ")[0] for line in tables))) == metrics()


def test_the_text_names_no_other():
    assert set(NAME.findall(PAGE.read_text())) - LABELS == metrics()
