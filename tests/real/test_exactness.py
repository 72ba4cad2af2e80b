"""Which targets a setting misses, the page's sections, and what is read of the API."""

import math

import pytest
import torch

from molink.errors import UserError
from tools.real.exactness import FULL, SHORT, Row
from tools.real.page import PAGE, exactness_table, with_section
from tools.real.prompts import CHATS, LONG_TOKENS, PROMPTS, long_text, loss_text
from tools.real.published import read_manifest
from tools.real.scores import Agreement, Comparison
from tools.real.served import scores_of_entries


def row(**changed):
    right = {
        "greedy": Agreement(3998, 2, 4000, 1e-4),
        "found": Comparison(2.0, 0.0011),
        "library": Comparison(2.0, 0.001),
        "reference_loss": 2.0,
    }
    return Row("GGUF, bfloat16, 1 stage", "bfloat16", "GGUF", **(right | changed))


def test_a_setting_that_is_right_misses_nothing():
    assert row().misses() == []
    assert row(greedy=Agreement(1, 0, 4000, 9.0)).misses() == [], "16 bits choose for themselves"


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"found": Comparison(2.0, 0.0013)}, "divergence 1.30 x the library's"),
        ({"found": Comparison(float("nan"), float("nan"))}, "divergence nan x the library's"),
        ({"found": Comparison(2.02, 0.0011)}, "loss 1.00 % above fp32's"),
        ({"other_tokens": ["Thai"]}, "other tokens for Thai"),
        ({"failure": "refused"}, "refused"),
    ],
)
def test_what_is_missed_is_said(changed, missed):
    assert missed in row(**changed).misses()


def test_in_fp32_each_token_counts_and_int4_may_lose_more():
    one = row(greedy=Agreement(3997, 2, 4000, 0.5))
    one.dtype = "float32"
    assert one.misses() == ["1 of 4000 greedy tokens differ"]
    four_bits = row(found=Comparison(2.05, 0.0011), loss_ratio_max=1.03)
    assert four_bits.misses() == []
    assert {one.name: one.int4_loss_ratio_max for one in read_manifest()} == {
        "gemma-3-270m": math.inf,
        "qwen2.5-coder-0.5b": 1.03,
    }


def test_a_table_says_what_was_not_measured():
    table = exactness_table([row(), row(failure="refused", greedy=None, found=None)])
    assert (
        "| 3998 of 4000 and 2 ties | 2.0000 | +0.00 % | 1.1e-03 | 1.0e-03 | 1.10 | yes |" in table
    )
    assert table.splitlines()[-1].endswith("| – | refused |")


def test_what_was_not_tried_and_llama_cpp_miss_nothing():
    late, neighbour = row(greedy=None, found=None), Row("llama.cpp", "", "llama.cpp")
    late.is_tried = False
    neighbour.greedy = Agreement(3_700, 0, 4_000, 1.0)
    assert late.misses() == neighbour.misses() == []
    *_, first, last = exactness_table([late, neighbour]).splitlines()
    assert first.endswith("| not tried: no time was left |")
    assert last == "| llama.cpp | 3700 of 4000 | – | – | – | – | – | – |"


def test_a_section_is_replaced_between_its_marks():
    page = "a\n<!-- make real: x -->\nold\n<!-- end of make real: x -->\nb\n"
    once = with_section(page, "x", "new")
    assert once == with_section(once, "x", "new") and "old" not in once
    assert once.startswith("a\n") and once.endswith("\nb\n")
    with pytest.raises(UserError, match="no place for figures"):
        with_section(page, "y", "new")


def test_each_model_has_a_place_in_the_page():
    page = PAGE.read_text(encoding="utf-8")
    for name in ("speed", "big shapes", *(model.name for model in read_manifest())):
        with_section(page, name, "figures")


def test_twenty_prompts_and_text_for_the_loss():
    assert len(PROMPTS) + len(CHATS) + 1 == 20
    assert 18_000 < len(loss_text().encode()) <= 20_100
    assert len(loss_text(2_000).encode()) <= 2_100
    assert len(long_text()) > 10 * LONG_TOKENS, "more than four thousand tokens of any vocabulary"
    names = {*PROMPTS, *(chat.name for chat in CHATS)}
    assert set(SHORT.prompt_names) <= names
    assert len({one.name for one in FULL.settings}) == len(FULL.settings)


def test_scores_are_read_as_the_api_gives_them():
    def entry(*words):
        return {str(id): {"logprob": value, "rank": rank} for id, value, rank in words}

    entries = [None, entry((7, -0.1, 1), (3, -3.0, 2), (9, -8.0, 40)), entry((3, -0.5, 1))]
    found = scores_of_entries([entries[0], entries[1]], [5, 9])
    assert found.own_T.tolist() == [-8.0]
    assert found.top_ids_TK.tolist() == [[7, 3, 9]]
    assert torch.allclose(found.top_TK, torch.tensor([[-0.1, -3.0, -8.0]]))
