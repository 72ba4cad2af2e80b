"""Each example of docs/api-examples.md is run against a server, in its own language."""

import asyncio
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from tests.api.conftest import CARD, serve, service  # noqa: F401, the last two are fixtures
from tests.docs_site.pages import ROOT, code_blocks

TEXT = (ROOT / "docs" / "api-examples.md").read_text(encoding="utf-8")
BLOCKS = list(code_blocks(TEXT))
WRITTEN_FOR = "http://127.0.0.1:8000"
PROGRAMS = {
    "sh": ["bash", "-euo", "pipefail", "-c"],
    "python": [sys.executable, "-c"],
    "javascript": ["node", "--input-type=module", "-e"],
}


def test_each_endpoint_has_all_three_languages():
    counts = Counter(language for language, _ in BLOCKS)
    assert set(counts) == set(PROGRAMS) and len(set(counts.values())) == 1
    assert counts["sh"] == TEXT.count("\n## ")


@pytest.mark.parametrize("language", PROGRAMS)
async def test_examples_run(service, serve, language):  # noqa: F811
    if shutil.which(PROGRAMS[language][0]) is None:
        pytest.skip(f"no {PROGRAMS[language][0]} is installed")
    url = await serve(service)
    for block in (text for one, text in BLOCKS if one == language):
        program = block.replace(WRITTEN_FOR, url).replace('"demo"', f'"{CARD.name}"')
        program = program.replace("curl -s", "curl --fail-with-body -sS")
        done = await asyncio.to_thread(
            subprocess.run,
            [*PROGRAMS[language], program],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip() and "undefined" not in done.stdout, block
