"""Which of the driver's cards does CUDA show to our stages? Pure.

`CUDA_VISIBLE_DEVICES` hides cards from a program and numbers the others anew; the driver's library
knows nothing of it. Without looking at it, a card that its owner has hidden would be lent.
"""

__all__ = ["VISIBLE_VARIABLE", "visible_cards"]

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_cards(count: int, setting: str | None) -> list[int]:
    """The driver's numbers of `cuda:0`, `cuda:1` and so on, of `count` cards.

    `setting` as in the variable; None: not set. Numbers count up to the first that is no card's, as
    for CUDA; names of cards (`GPU-...`) are not looked up: then all cards are taken for visible.
    """
    if setting is None or setting.strip().startswith(("GPU-", "MIG-")):
        return list(range(count))
    numbers: list[int] = []
    for word in setting.split(","):
        if not word.strip().isdecimal() or int(word) >= count:
            break
        numbers.append(int(word))
    return numbers
