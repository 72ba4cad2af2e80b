"""The table of both systems, and what is said where llama.cpp is not built."""

import pytest

from molink.errors import UserError
from tools.real.llama_cpp import PROGRAMS_VARIABLE, programs
from tools.real.speed import speed_table


def test_a_table_has_both_systems_and_their_ratio():
    def figures(each):
        return {f"tokens_per_s_{users}": each * users for users in (1, 4, 8)} | {"ttft_s": 2 / each}

    names = [f"{one}, {link}" for link in ("loopback", "100:30") for one in ("MoLink", "llama.cpp")]
    middle = {name: figures(3.0 if "MoLink" in name else 2.0) for name in names}
    table = speed_table(middle).splitlines()
    assert table[2] == "| loopback | MoLink | 3.00 | 12.00 | 24.00 | 0.67 |"
    assert table[4] == "| loopback | ratio | 1.50 x | 1.50 x | 1.50 x | 0.67 x |"
    assert len(table) == 8


def test_without_its_programs_one_sentence_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv(PROGRAMS_VARIABLE, raising=False)
    with pytest.raises(UserError, match=r"build them as tools/real/llama_cpp.md says"):
        programs()
    monkeypatch.setenv(PROGRAMS_VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=PROGRAMS_VARIABLE):
        programs()
    for name in ("llama-server", "ggml-rpc-server"):
        (tmp_path / name).touch()
    assert programs() == tmp_path
