"""Makes keys and values of all heads from the latent row of a token, or saves making them.

Multi-head latent attention (MLA: DeepSeek, Kimi, GLM-4.7-Flash and others) derives a token's keys
and values from one short row: its latent part goes through a matrix for each head, its rotated part
is the end of every head's key as it is. Scores are products of queries and keys, so the matrix may
as well be multiplied into the query, which then meets the latent row itself; and what the weights
sum up may be latent rows, which become values afterwards. So the pool keeps the short rows.

That costs more for each pair of a row and a key, and saves making keys and values of every token
before: right for few rows. A span of many makes them anew, for some heads at a time.

Shapes: T rows, N keys, H query heads, R latent part of a row, L the whole of it, P plain part of a
key, A a whole key, V a value.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Expand = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Keys [1, H, N, A] and values [1, H, N, V] of latent [1, 1, N, R] and rotated parts."""


class LatentExpansion(nn.Module):
    """Matrices that make keys and values of all heads from latent rows."""

    def __init__(self, keys_HPR: torch.Tensor, values_HVR: torch.Tensor, rotated: int) -> None:
        super().__init__()
        self.keys_HPR = nn.Parameter(keys_HPR, requires_grad=False)
        self.values_HVR = nn.Parameter(values_HVR, requires_grad=False)
        self.heads, self.plain, self.rank = keys_HPR.shape
        self.value_size, self.rotated = values_HVR.shape[1], rotated

    @property
    def sizes(self) -> tuple[int, ...]:
        """Layers of equal sizes treat the spans of a step alike."""
        return self.rank, self.plain, self.value_size

    def saves(self, rows: int, keys: int) -> bool:
        """Whether `rows` rows take fewer multiplications with the keys and values of `keys` tokens
        made first; never for one row, whose blocks a card gathers together with other rows'."""
        pair = self.rank - self.plain + self.rank - self.value_size
        made = self.rank * (self.plain + self.value_size)
        return rows > 1 and rows * (keys * pair + made) > keys * made

    def absorbed(self, q_THA: torch.Tensor) -> torch.Tensor:
        """Queries that meet latent rows in place of keys, [T, H, L]."""
        q_HTR = torch.bmm(q_THA[..., : self.plain].transpose(0, 1), self.keys_HPR)
        return torch.cat([q_HTR.transpose(0, 1), q_THA[..., self.plain :]], -1)

    def values(self, sums_THR: torch.Tensor) -> torch.Tensor:
        """Weighted sums of values for those of latent rows, [T, H, V]."""
        out_HTV = torch.bmm(sums_THR.transpose(0, 1), self.values_HVR.transpose(1, 2))
        return out_HTV.transpose(0, 1)

    def expanded(self, rows_NL: torch.Tensor, heads: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [N, h, A] and values [N, h, V] of some of the heads."""
        latent_NR, rotated = rows_NL[:, : self.rank], rows_NL[:, None, self.rank :]
        keys_HPR, values_HVR = self.keys_HPR[heads], self.values_HVR[heads]
        count = len(keys_HPR)
        plain = (latent_NR @ keys_HPR.flatten(0, 1).T).view(-1, count, self.plain)
        values = (latent_NR @ values_HVR.flatten(0, 1).T).view(-1, count, self.value_size)
        return torch.cat([plain, rotated.expand(-1, count, -1)], -1), values


def latent_rows(
    latent_11TR: torch.Tensor, rotated_11T: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stands where a model makes keys and values: hands on what they would be made from."""
    rows = torch.cat([latent_11TR, rotated_11T], -1)
    return rows, rows[..., : latent_11TR.shape[-1]]


@torch.no_grad()
def expansion_of(expand: Expand, latent: Any, rotated: Any) -> LatentExpansion | None:
    """The matrices behind `expand`, for parts of rows like these; None where it does anything else.

    They are read off from rows of the identity, whatever the weights are stored in.
    """
    rank, turned = latent.shape[-1], rotated.shape[-1]
    one = {"dtype": latent.dtype, "device": latent.device}
    keys_HRA, values_HRV = _kv_of(expand, torch.eye(rank, **one), torch.zeros(rank, turned, **one))
    turned_keys, turned_values = _kv_of(
        expand, torch.zeros(turned, rank, **one), torch.eye(turned, **one)
    )
    plain = keys_HRA.shape[-1] - turned
    as_it_is = torch.eye(turned, **one).expand(len(keys_HRA), -1, -1)
    if (
        plain < 1
        or keys_HRA[..., plain:].any()
        or turned_keys[..., :plain].any()
        or turned_values.any()
        or (turned_keys[..., plain:] != as_it_is).any()
    ):
        return None
    keys_HPR = keys_HRA[..., :plain].transpose(1, 2).contiguous()
    return LatentExpansion(keys_HPR, values_HRV.transpose(1, 2).contiguous(), turned)


def _kv_of(expand: Expand, latent: Any, rotated: Any) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = expand(latent[None, None], rotated[None, None])
    return keys[0], values[0]
