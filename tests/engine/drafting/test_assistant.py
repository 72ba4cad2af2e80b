"""Assistants of Gemma 4 at the tail against the library's candidate generator."""

from random import Random

import pytest

from tests.engine.drafting.assistant_checkpoints import SETTINGS, SOURCES, save_assisted
from tests.engine.drafting.tail_ring import TailRing, drafting_stages
from tests.engine.drafting.test_tail_layer import requests_of
from tests.engine.tiny_models import LAYERS

ORDERED = dict(use_ordered_embeddings=True, num_centroids=16, centroid_intermediate_top_k=4)


class AssistedRing(TailRing):
    def due(self, one, wants):
        """Drafts of the library; a request has them behind its last block, too."""
        return self.oracle.drafts(one.known, one.prompt, one.params, wants)


@pytest.fixture(scope="module", params=[*SETTINGS, "ordered"])
def made(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    target = request.param if request.param in SETTINGS else "plain"
    oracle = save_assisted(target, directory, **(ORDERED if request.param == "ordered" else {}))
    first = SOURCES[target]
    return oracle, {
        cuts: drafting_stages(directory, cuts, assistant=directory / "assistant")
        for cuts in ((0, LAYERS), (0, first, LAYERS), (0, 1, first, LAYERS))
    }


@pytest.mark.parametrize("stages", range(3))
def test_drafts_are_the_librarys(made, stages):
    oracle, by_cuts = made
    ring = AssistedRing(list(by_cuts.values())[stages], oracle, Random(stages))
    ring.play(requests_of(ring.random, 4), 12)
    assert ring.drafted > 20
