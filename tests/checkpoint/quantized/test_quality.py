"""What is said of quality is what the page has measured, and nothing is said of anything else."""

from pathlib import Path

import pytest

from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink.checkpoint.quantized.quality import (
    FP8,
    IMPORTED,
    KV_INT8,
    MXFP4,
    ROUNDED,
    SOURCE,
    quality_lines,
)

PAGE = (Path(__file__).parents[3] / SOURCE).read_text()


def rows_of(section: str) -> dict[str, list[str]]:
    """Lines of the first table of a section, by their first cell."""
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {row[0]: row[1:] for row in cells if len(row) > 3}


@pytest.mark.parametrize("found", [*ROUNDED.values(), FP8, MXFP4])
def test_figures_of_plain_rounding_are_those_of_the_page(found):
    rows = rows_of("Quality")
    kl, same, _, perplexity = map(float, rows[found.row])
    assert (found.kl, found.same_percent, found.perplexity) == (
        pytest.approx(kl / 1e3),
        *(same, perplexity),
    )
    assert found.plain_perplexity == float(rows["as stored (bf16)"][3])


@pytest.mark.parametrize("found", IMPORTED.values())
def test_figures_of_imports_are_those_of_the_page(found):
    rows = rows_of("Quality of what `molink import` rounds")
    _, kl, same, perplexity = map(float, rows[found.row])
    assert (found.kl, found.same_percent, found.perplexity) == (
        pytest.approx(kl / 1e3),
        *(same, perplexity),
    )
    assert found.plain_perplexity == float(rows["bf16"][3])


def test_figures_of_kv_are_those_of_the_page():
    rows = rows_of("KV in int8")
    _, perplexity, kl, same = rows["int8"]
    assert (KV_INT8.kl, KV_INT8.same_percent) == (float(kl), float(same.removesuffix(" %")))
    assert (KV_INT8.perplexity, KV_INT8.plain_perplexity) == (
        *(float(perplexity), float(rows["fp32"][1])),
    )


def test_a_line_names_the_model_that_was_measured_and_its_source():
    (line,) = quality_lines(DeclaredQuantization("awq", 4, 128))
    assert line == (
        "Rounding to int4 in groups of 128 was measured on the demo model only: KL 0.00041, the "
        "likeliest word the same in 96.9 %, perplexity 1.6176 after 1.6171 "
        "(docs/benchmarks/quantized.md)."
    )


@pytest.mark.parametrize(
    "declared",
    [
        DeclaredQuantization("gguf"),
        DeclaredQuantization("fp8"),
        DeclaredQuantization("gptq", 4, 64),
        DeclaredQuantization("gptq", 8, 128),
        DeclaredQuantization("compressed-tensors", 8, 128, is_float=True),
    ],
)
def test_nothing_is_said_of_what_was_not_measured(declared):
    (line,) = quality_lines(declared)
    assert line.endswith("cost in quality was not measured (docs/benchmarks/quantized.md).")


def test_plain_weights_need_no_line():
    assert quality_lines(DeclaredQuantization()) == []
    (line,) = quality_lines(DeclaredQuantization(), is_kv_int8=True)
    assert line == KV_INT8.sentence
