"""Who looks on while something goes wrong: an operator, a user's browser, a real Prometheus.

Each onlooker says whether it tells of a trouble now. The dashboard is read as lines, the page in a
headless Chromium, and alerts are those that Prometheus has firing, with the rules of deploy/.
"""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molink.api.server import free_ports
from molink.errors import UserError
from tools.experiments.harness.agents import get_json
from tools.experiments.harness.processes import MOLINK, Running, running

__all__ = ["Onlookers", "Said", "onlookers"]

RULES = Path("deploy/prometheus/molink.rules.yml")

PROMETHEUS = """\
global: {{ scrape_interval: 1s, scrape_timeout: 900ms, evaluation_interval: 1s }}
rule_files: [{rules}]
scrape_configs:
  - job_name: molink
    authorization: {{ credentials_file: {key} }}
    static_configs: [{{ targets: ["{target}"] }}]
"""

STARTED_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Said:
    """What shows that an onlooker tells of a trouble."""

    finding: str
    """Its kind; empty: nobody is there who could make one."""
    line: str
    """Pattern in a line of the dashboard."""
    page: str
    """Pattern in the page; empty: a user is not told, as answers come as before."""
    alert: str
    """Name of a firing alert."""


@dataclass(slots=True)
class Onlookers:
    """All who look on at one coordinator."""

    url: str
    prometheus: str
    """Its address."""
    dashboard: Running
    page: Any
    """The page of a user, as playwright has it."""

    def seconds_until_told(
        self, said: Said, within_s: float, since_s: float
    ) -> dict[str, float | None]:
        """Seconds since then until each onlooker tells of it; None: not within that time."""
        asked = self._questions(said, since_s)
        found: dict[str, float | None] = dict.fromkeys(asked)
        while time.perf_counter() < since_s + within_s and None in found.values():
            for name in (name for name, took_s in found.items() if took_s is None):
                if asked[name]():
                    found[name] = time.perf_counter() - since_s
            self.page.wait_for_timeout(50)
        return found

    def _questions(self, said: Said, since_s: float) -> dict[str, Callable[[], bool]]:
        asked: dict[str, Callable[[], bool]] = {
            "dashboard": lambda: self._has_line(said.line, since_s),
            "alert": lambda: self._fires(said),
        }
        if said.finding:
            asked["findings"] = lambda: said.finding in self._findings()
            asked["metrics"] = lambda: f'finding="{said.finding}"' in self._metrics()
        if said.page:
            asked["page"] = lambda: self._page_says(said.page)
        return asked

    def standing(self) -> set[str]:
        """Kinds of what stands out now, notes left out; empty where nobody answers."""
        return self._findings()

    def _has_line(self, pattern: str, since_s: float) -> bool:
        lines = [text for at_s, text in self.dashboard.lines if at_s >= since_s]
        return any(re.search(pattern, text) for text in lines)

    def _page_says(self, pattern: str) -> bool:
        return re.search(pattern, self.page.inner_text("body")) is not None

    def _findings(self) -> set[str]:
        try:
            found = get_json(f"{self.url}/cluster/findings")["findings"]
        except OSError:
            return set()
        return {one["kind"] for one in found if one["severity"] != "note"}

    def _metrics(self) -> str:
        key = os.environ.get("MOLINK_API_KEY", "")
        asked = urllib.request.Request(
            f"{self.url}/metrics", headers={"Authorization": f"Bearer {key}"}
        )
        try:
            with urllib.request.urlopen(asked) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return ""
        told = (one for one in lines if one.startswith("molink_finding{"))
        return "\n".join(one for one in told if float(one.split()[-1]) > 0)

    def _fires(self, said: Said) -> bool:
        with urllib.request.urlopen(f"{self.prometheus}/api/v1/alerts") as answer:
            alerts = json.load(answer)["data"]["alerts"]
        return any(
            one["state"] == "firing"
            and one["labels"]["alertname"] == said.alert
            and one["labels"].get("finding", said.finding) == said.finding
            for one in alerts
        )


@contextmanager
def onlookers(url: str, key: str, folder: Path) -> Iterator[Onlookers]:
    """Have a dashboard, a page and a Prometheus look on until the block ends. Raises UserError
    where Prometheus or a browser is not installed."""
    from playwright.sync_api import sync_playwright

    browser = shutil.which("chromium")
    if browser is None or shutil.which("prometheus") is None:
        raise UserError("this needs chromium and prometheus: apt-get install chromium prometheus")
    with (
        _prometheus(url, key, folder) as prometheus,
        running(MOLINK, "dashboard", "--url", url) as dashboard,
        sync_playwright() as driver,
    ):
        page = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page()
        page.goto(f"{url}/#key={key}")
        page.wait_for_selector("#state[data-kind=good]")
        yield Onlookers(url, prometheus, dashboard, page)


@contextmanager
def _prometheus(url: str, key: str, folder: Path) -> Iterator[str]:
    port, *_ = free_ports("127.0.0.1", 1)
    address, secret, config = f"http://127.0.0.1:{port}", folder / "key", folder / "config.yml"
    secret.write_text(key)
    target = url.partition("//")[2].rstrip("/")
    config.write_text(PROMETHEUS.format(rules=RULES.resolve(), key=secret, target=target))
    words = (f"--config.file={config}", f"--storage.tsdb.path={folder}/prometheus")
    quiet = f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"
    process = subprocess.Popen(["prometheus", *words, *quiet])
    try:
        _wait_for(f"{address}/-/ready")
        yield address
    finally:
        process.terminate()
        process.wait(STARTED_WITHIN_S)


def _wait_for(url: str) -> None:
    deadline_s = time.perf_counter() + STARTED_WITHIN_S
    while True:
        try:
            urllib.request.urlopen(url).close()
            return
        except (urllib.error.URLError, OSError) as error:
            if time.perf_counter() > deadline_s:
                raise UserError(f"{url} does not answer: {error}") from error
            time.sleep(0.1)
