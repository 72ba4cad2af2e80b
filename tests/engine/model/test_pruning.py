"""Skipped layers answer and return what the layers do that they stand for."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from molink.engine.model.pruning import Skip, fit_skips


class Layer(nn.Module):
    def __init__(self, returns: int | None, kind: str = "usual") -> None:
        super().__init__()
        self.count, self.kind, self.weight = returns, kind, nn.Parameter(torch.ones(4))
        self._private = "own"

    def forward(self, hidden_states):
        rows = hidden_states * self.weight
        return rows if self.count is None else (rows, *[None] * (self.count - 1))


class Decoder(nn.Module):
    """Four layers, of which the owned ones return `returns` things."""

    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(num_hidden_layers=4))

    def __init__(self, returns: int | None, owned: tuple[int, ...]) -> None:
        super().__init__()
        layers = [Layer(returns) for _ in range(4)]
        self.layers = nn.ModuleList(
            layer if number in owned else Skip(layer) for number, layer in enumerate(layers)
        )
        self.unpacks = returns

    def get_decoder(self):
        return self

    def forward(self, x):
        for layer in self.layers:
            if self.unpacks is None:
                x = layer(hidden_states=x)
            elif self.unpacks == 1:
                x = layer(hidden_states=x)[0]
            else:
                x, *_ = layer(hidden_states=x)
        return x


@pytest.mark.parametrize("returns", [None, 1, 2, 3])
@pytest.mark.parametrize("owned", [(0, 1), (1, 2), (3,), (0, 1, 2, 3)])
def test_skips_return_as_many_things_as_owned_layers(returns, owned):
    decoder, x = Decoder(returns, owned), torch.ones(1, 1, 4)
    fit_skips(decoder, lambda: decoder(x))
    assert decoder(x).shape == x.shape
    assert all(layer.returns == returns for layer in decoder.layers if isinstance(layer, Skip))


def test_where_no_number_serves_the_next_run_says_why():
    decoder = Decoder(None, (1,))

    def broken():
        raise RuntimeError("not a number of things")

    fit_skips(decoder, broken)
    assert all(layer.returns is None for layer in decoder.layers if isinstance(layer, Skip))


def test_a_skip_answers_what_its_layer_said_of_itself():
    skip = Skip(Layer(None, kind="recurrent"))
    assert skip.kind == "recurrent"
    assert not hasattr(skip, "_private") and not list(skip.parameters())
