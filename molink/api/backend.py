"""Backend of an endpoint: the service, and how its model's answers are read and named."""

from dataclasses import dataclass

from molink.api.chat import ChatFormat
from molink.api.openai.logprobs import TokenTexts
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationService


@dataclass(frozen=True, slots=True)
class Backend:
    """Service behind the endpoints, with what all requests to it share."""

    service: GenerationService
    texts: TokenTexts
    format: ChatFormat

    @property
    def card(self) -> ModelCard:
        """Card of the model as it is served now."""
        return self.service.card
