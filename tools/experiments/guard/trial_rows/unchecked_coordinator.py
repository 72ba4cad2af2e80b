"""`molink` whose coordinator takes the model for one of more words: heads must refuse these."""

from collections.abc import Iterable
from typing import Any

from molink.cli.main import main
from molink.serving import served_model
from molink.serving.model_card import ModelCard

MORE_WORDS = 64


def card_of_more(**fields: Any) -> ModelCard:
    """As the product's, of more words than the model has rows for."""
    return ModelCard(**fields | {"vocabulary_size": fields["vocabulary_size"] + MORE_WORDS})


def check_token_ids(card: ModelCard, token_ids: Iterable[int]) -> None:
    """Let words pass that have no row, where the product refuses them."""


if __name__ == "__main__":
    vars(served_model)["ModelCard"] = card_of_more
    ModelCard.check_token_ids = check_token_ids  # type: ignore[method-assign, assignment]
    main()
