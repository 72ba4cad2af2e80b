"""The catalogue for PCs that have measured themselves, all plans made in one process."""

from string import ascii_lowercase

from molink.checkpoint.catalogue.entries import catalogue_entry
from molink.control.messages.payloads import FormatCost, PathMeasured, PathReport
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.planning.catalogue_plans import PCS_MAX, cluster_catalogue
from tests.coordinator.examples import HERE, PROFILE

GIB, LETTERS = 2**30, ascii_lowercase
ENTRIES = [catalogue_entry(name) for name in ("qwen3-8b", "qwen3-32b", "llama-4-scout")]


def cluster(count, gib):
    """PCs with a card as fast as an RTX 3060, by their own times of weights in each format."""
    device = PROFILE.devices[0].model_copy(
        update={"kind": "cuda", "memory_bytes": gib * GIB, "free_bytes": gib * GIB}
    )
    formats = tuple(
        FormatCost(format=name, read_s=read_s, row_s=1.2e-4)
        for name, read_s in (("plain", 7.1e-3), ("int4_g128", 1.9e-3), ("int8", 18e-3))
    )
    profile = PROFILE.model_copy(
        update={"devices": (device,), "formats": formats, "upload_mbps": 40.0}
    )
    book, ids = NodeBook(), [14 * "a" + LETTERS[n // 26] + LETTERS[n % 26] for n in range(count)]
    for node_id in ids:
        book.take(node_id, HERE.model_copy(update={"name": node_id[-2:]}), 0.0)
        book.take(node_id, profile, 0.0)
        others = [other for other in ids if other != node_id]
        paths = [PathMeasured(to=to, path="direct", rtt_ms=20, rate_mbps=40) for to in others]
        book.take(node_id, PathReport(round=1, paths=tuple(paths)), 0.0)
    return list(book)


async def test_what_the_pcs_here_can_run():
    told = await cluster_catalogue(cluster(2, 11), "bfloat16", ENTRIES)
    assert told["pcs"] == [
        {"name": "aa", "memory_bytes": 11 * GIB},
        {"name": "ab", "memory_bytes": 11 * GIB},
    ]
    found = {one["name"]: one for one in told["models"]}
    assert [one["name"] for one in told["models"]] == ["qwen3-32b", "qwen3-8b", "llama-4-scout"]
    large, small = found["qwen3-32b"]["fit"], found["qwen3-8b"]["fit"]
    assert large["form"] == "4 bits" and large["pcs"] == 2
    assert 5 < large["tokens_per_s_alone"] < small["tokens_per_s_alone"] < 200
    assert found["llama-4-scout"]["state"] == "refused"


async def test_the_pcs_that_lend_most_are_planned_with():
    told = await cluster_catalogue(cluster(PCS_MAX + 2, 6), "bfloat16", ENTRIES[:1])
    assert len(told["pcs"]) == PCS_MAX
    assert told["models"][0]["fit"]["pcs"] <= PCS_MAX


async def test_a_cluster_without_pcs_runs_nothing():
    told = await cluster_catalogue([], "bfloat16", ENTRIES)
    assert told["pcs"] == [] and all(one["fit"] is None for one in told["models"])
