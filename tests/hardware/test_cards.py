"""Cards by the names that people write, and what the table says of them."""

import pytest

from molink.errors import UserError
from molink.hardware.cards import card_tables
from molink.hardware.gpu import gpu, known_gpus


@pytest.mark.parametrize(
    "written, name, memory_gib",
    [
        ("3090", "rtx3090", 24),
        ("RTX 3060 12GB", "rtx3060", 12),
        ("3060 8 GB", "rtx3060-8gb", 8),
        ("NVIDIA GeForce RTX 4080 Laptop GPU", "rtx4080-laptop", 12),
        ("rtx4080 laptop", "rtx4080-laptop", 12),
        ("3080 mobile", "rtx3080-laptop", 8),
        ("4070 Ti SUPER", "rtx4070-ti-super", 16),
        ("RTX 4090 D", "rtx4090-d", 24),
        ("3050 6GB laptop", "rtx3050-laptop-6gb", 6),
        ("5070", "rtx5070", 12),
        ("A100 80GB", "a100-80gb", 80),
    ],
)
def test_common_names(written, name, memory_gib):
    assert (gpu(written).name, gpu(written).memory_gib) == (name, memory_gib)


@pytest.mark.parametrize(
    "written, sentence",
    [
        ("3090x", "no GPU '3090x' is known: nearest is 3090 or"),
        ("3090 12GB", "nearest is "),
        ("potato", "no GPU 'potato' is known: write 3060, RTX 4070 Ti,"),
        ("", "no GPU '' is known: write "),
        ("\x1b[31m3090", "no GPU '\ufffd[31m3090' is known"),
    ],
)
def test_an_unknown_one_gets_the_nearest(written, sentence):
    with pytest.raises(UserError) as error:
        gpu(written)
    assert str(error.value).startswith(sentence) or sentence in str(error.value)


def test_sixty_cards_of_four_series():
    assert len(card_tables()) >= 60
    assert {name[3:5] for name in card_tables()} == {"20", "30", "40", "50"}
    assert all(gpu(name).name == name for name in known_gpus())


@pytest.mark.parametrize("name", card_tables())
def test_figures_are_those_of_a_card(name):
    card = card_tables()[name]
    assert card["source"] == "nvidia" or card["source"].startswith("c")
    assert 4 <= card["memory_gib"] <= 32 and 150 <= card["bandwidth_gb_per_s"] <= 1800
    # Arithmetic for each byte of memory traffic: no card is a misplaced digit away.
    assert 35 < 1e3 * card["tflops"] / card["bandwidth_gb_per_s"] < 180
    assert (
        ("laptop" in name)
        or f"{name[:7]}-laptop" not in card_tables()
        or (card["tflops"] >= card_tables()[f"{name[:7]}-laptop"]["tflops"])
    )
