"""Values of every kind that may cross the wire."""

import pytest
from hypothesis import strategies as st

from molink.wire.elements import TensorHeader
from molink.wire.frames import (
    Activations,
    BlocksFetched,
    Cancel,
    ChangeCache,
    FinishReason,
    Forget,
    Sampled,
    Submit,
    TokenSample,
)
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.kv.changes import (
    DropBlocks,
    FetchBlocks,
    Fetched,
    FoldBlocks,
    KeepBlocks,
    KeptBlocks,
    LowerBlocks,
    RetainBlocks,
    TakeBlocks,
)
from molink_scheduler.kv.tiers import FILE, HOST
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.token_ids import token_bytes

ids = st.integers(0, 2**40)
tokens = st.integers(0, 2**20)
token_tuples = st.lists(tokens, max_size=5).map(tuple)
floats = st.floats(0.1, 1.0)

samplings = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 1000),
    temperature=floats,
    top_p=floats,
    top_k=st.integers(0, 50),
    min_p=floats,
    seed=st.integers(0, 2**64 - 1),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    repetition_penalty=floats,
    kv_budget=floats,
    stop=st.lists(st.text(min_size=1, max_size=4), max_size=2).map(tuple),
    stop_token_ids=token_tuples,
    logprobs=st.none() | st.integers(0, 20),
)
admissions = st.builds(
    Admission,
    request_id=ids,
    prompt_tokens=tokens,
    tokens_expected=tokens,
    sampling=samplings,
    prompt=token_tuples,
    output=token_tuples,
)
spans = st.builds(
    lambda request, start, length, samples: Span(request, start, start + length, samples),
    ids,
    st.integers(0, 1000),
    st.integers(1, 20),
    st.booleans(),
)
batches = st.builds(
    Batch,
    batch_id=ids,
    batch_class=st.sampled_from(BatchClass),
    micro_batch=st.integers(-1, 64),
    spans=st.lists(spans, min_size=1, max_size=4).map(tuple),
    admissions=st.lists(admissions, max_size=2).map(tuple),
)


def with_tensor(batch: Batch) -> Activations:
    header = TensorHeader("bfloat16", batch.tokens, 8)
    return Activations(batch, header, bytes(header.raw_bytes))


samples = st.builds(
    TokenSample,
    request_id=ids,
    token_id=tokens,
    finish=st.sampled_from(FinishReason),
    logprob=st.floats(-50, 0),
    top=st.lists(st.tuples(tokens, st.floats(-50, 0)), max_size=3).map(tuple),
) | st.builds(TokenSample, request_id=ids, token_id=tokens)
prompts = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5).map(token_bytes)


runs = st.lists(st.tuples(ids, st.integers(1, 2**20)), min_size=1, max_size=3).map(tuple)
kept = st.lists(st.builds(KeptBlocks, ids, ids, ids, st.integers(1, 99)), min_size=1, max_size=2)
changes = st.one_of(
    st.builds(KeepBlocks, kept.map(tuple)),
    st.builds(DropBlocks, runs),
    st.builds(LowerBlocks, st.sampled_from([HOST, FILE]), runs),
    st.builds(FetchBlocks, ids, runs),
    st.builds(RetainBlocks, runs.map(lambda some: some[:1])),
    st.builds(TakeBlocks, ids, runs, st.tuples(ids, ids), ids),
    st.builds(FoldBlocks, ids, st.integers(101, 2**20), st.integers(1, 100)),
)


@pytest.fixture(scope="session")
def messages():
    return st.one_of(
        st.builds(Submit, st.builds(Request, ids, prompts, samplings, token_tuples)),
        st.builds(Cancel, ids),
        st.builds(Forget, st.builds(Release, ids)),
        st.builds(ChangeCache, changes),
        st.builds(BlocksFetched, st.builds(Fetched, ids, ids)),
        st.builds(
            Sampled,
            st.sampled_from(BatchClass),
            st.integers(-1, 64),
            st.lists(spans, max_size=3).map(tuple),
            st.lists(samples, max_size=3).map(tuple),
        ),
        batches.map(with_tensor),
    )
