import pytest
import torch
from safetensors.torch import load_file

from molink.engine import loading
from molink.errors import StageError, UserError
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.kv.blocks import OutOfBlocks
from molink_scheduler.request import SamplingParams
from tests.engine.cpu_stages import cpu_stage
from tests.engine.ring_driver import Job, RingDriver, load_stages
from tests.engine.tiny_models import LAYERS, save_tiny

SAMPLING = SamplingParams(max_tokens=8, temperature=0.0)


def batch(*spans: Span, admit: bool = True) -> Batch:
    admissions = tuple(Admission(s.request_id, s.end, 8, SAMPLING) for s in spans if admit)
    return Batch(1, BatchClass.PREFILL, -1, spans, admissions)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("llama")
    save_tiny("llama", directory)
    return directory


@pytest.fixture
def head(checkpoint):
    return cpu_stage(checkpoint, range(2))


def test_a_head_hands_on_one_row_per_token(head):
    output = head.step(batch(Span(1, 0, 5, True), Span(2, 0, 2, False)), [3, 4, 5, 6, 7, 8, 9])
    assert output.hidden_TD.shape == (7, head.hidden_size)
    assert output.drawn == ()
    assert (head.is_head, head.is_tail, head.layers) == (True, False, range(2))


def test_a_tail_draws_for_the_spans_that_sample(checkpoint):
    tail = cpu_stage(checkpoint, range(2, LAYERS))
    hidden = torch.randn(6, tail.hidden_size)
    spans = (Span(1, 0, 3, False), Span(2, 0, 1, True), Span(3, 0, 2, True))
    output = tail.step(batch(*spans), hidden_TD=hidden)
    assert [token.request_id for token in output.drawn] == [2, 3]
    assert output.hidden_TD is None
    assert tail.step(batch(Span(4, 0, 6, False)), hidden_TD=hidden).drawn == ()


def test_a_stage_holds_its_own_weights_and_no_others(checkpoint):
    sizes = {
        name: tensor.numel() * tensor.element_size()
        for path in checkpoint.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }
    middle = cpu_stage(checkpoint, range(2, 4))
    wanted = sum(size for name, size in sizes.items() if "layers.2." in name or "layers.3." in name)
    assert wanted <= middle.weights_bytes < 1.01 * wanted + 1000


def test_a_tail_with_tied_embeddings_holds_them_once(tmp_path):
    save_tiny("tied_llama", tmp_path)
    tail = cpu_stage(tmp_path, range(LAYERS - 1, LAYERS))
    middle = cpu_stage(tmp_path, range(2, 3))
    embedding = 160 * 64 * 4
    assert tail.weights_bytes - middle.weights_bytes < 1.1 * embedding


def test_progress_rises_to_one(checkpoint):
    seen: list[float] = []
    cpu_stage(checkpoint, range(2), seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 5


def test_each_tensor_and_each_piece_that_is_read_counts(checkpoint, monkeypatch):
    """From an old disk a stage takes minutes: a coordinator must see that it goes on."""
    monkeypatch.setattr(loading, "READ_BYTES", 1000)
    seen: list[float] = []
    stage = cpu_stage(checkpoint, range(2), seen.append)
    opened = [fraction for fraction in seen if loading.OPENED / 2 < fraction <= loading.OPENED]
    read = [fraction for fraction in seen if loading.OPENED < fraction <= loading.READ]
    assert len(opened) >= 2 * 7, "tensors of a layer"
    assert len(read) >= stage.weights_bytes // 1000


def test_nothing_of_the_warm_up_remains(head):
    assert head.kv.tokens_used == 0
    assert head.kv.tokens_capacity == 64
    assert head.kv_token_bytes == 2 * 2 * 2 * 16 * 4


def test_kv_that_runs_out_is_reported_and_a_release_makes_room(head):
    head.step(batch(Span(1, 0, 50, False)), [3] * 50)
    with pytest.raises(OutOfBlocks):
        head.step(batch(Span(2, 0, 20, False)), [3] * 20)
    head.release(Release(1))
    head.release(Release(99))
    head.step(batch(Span(2, 0, 20, False)), [3] * 20)


@pytest.mark.parametrize(
    ("work", "ids"),
    [
        (batch(Span(1, 0, 3, True), admit=False), [1, 2, 3]),
        (batch(Span(1, 0, 3, True)), [1, 2]),
        (batch(Span(1, 0, 3, True)), None),
        (batch(Span(1, 0, 3, True)), [1, 2, 160]),
        (batch(Span(1, 0, 3, True)), [1, 2, -1]),
    ],
)
def test_a_batch_that_cannot_be_computed_is_reported(head, work, ids):
    with pytest.raises(StageError):
        head.step(work, ids)


def test_hidden_rows_must_fit(checkpoint):
    middle = cpu_stage(checkpoint, range(2, 4))
    with pytest.raises(StageError):
        middle.step(batch(Span(1, 0, 3, True)), hidden_TD=torch.zeros(2, middle.hidden_size))
    with pytest.raises(StageError):
        middle.step(batch(Span(1, 0, 3, True)), [1, 2, 3])


def test_positions_beyond_the_model_are_refused(checkpoint):
    stage = cpu_stage(checkpoint, range(2), kv_tokens=1024)
    with pytest.raises(StageError, match="beyond"):
        stage.step(batch(Span(1, 0, 257, False)), [3] * 257)


def test_a_wrong_device_or_dtype_is_refused(checkpoint):
    for options in ({"device": "cuda:97"}, {"dtype": "int3"}):
        with pytest.raises(UserError):
            cpu_stage(checkpoint, range(2), **options)


def sampled_jobs() -> list[Job]:
    options = [
        dict(temperature=1.0, seed=3),
        dict(temperature=0.7, top_p=0.8, seed=4, repetition_penalty=1.2),
        dict(temperature=1.5, top_k=9, seed=5, logprobs=2, frequency_penalty=0.5),
        dict(temperature=0.0, presence_penalty=0.3),
    ]
    return [
        Job(number, list(range(5 + number, 25)), 8, SamplingParams(max_tokens=8, **sampling))
        for number, sampling in enumerate(options)
    ]


def test_a_seeded_request_gives_the_same_tokens_alone_and_in_company(checkpoint):
    stages = load_stages(checkpoint, (0, 3, LAYERS))
    together = RingDriver(stages).run(sampled_jobs())
    alone = [RingDriver(stages).run([job])[0] for job in sampled_jobs()]
    assert together == alone
    assert len({tuple(output) for output in together}) == len(together)


@pytest.mark.parametrize(
    "name", ["llama", "qwen2", "qwen3", "gemma2", "mistral", "gpt_oss", "opt", "gpt2", "phi3"]
)
def test_a_bfloat16_ring_is_as_good_as_its_rounding(name, tmp_path):
    """Through the CPU's fastest kernels: heads of 32 channels suit them all. Every expert counts:
    where rounding picks another expert, it is the model that differs."""
    overrides = {} if name in ("gpt2", "opt") else dict(head_dim=32)
    if name == "gpt_oss":
        overrides["num_experts_per_tok"] = 4
    model = save_tiny(name, tmp_path, "bfloat16", **overrides).float()
    stages = load_stages(tmp_path, (0, 3, LAYERS), dtype="bfloat16")
    assert stages[0].dtype is torch.bfloat16
    sampling = SamplingParams(max_tokens=9, temperature=0.0, logprobs=20)
    jobs = [Job(n, list(range(3 + n, 30 - 9 * n)), 9, sampling) for n in range(3)]
    RingDriver(stages).run(jobs)
    for job in jobs:
        with torch.inference_mode():
            logits = model(torch.tensor([job.known])).logits[0]
        wanted = logits[len(job.prompt) - 1 : -1].log_softmax(-1)
        errors = [
            abs(value - float(row[word]))
            for token, row in zip(job.drawn, wanted, strict=True)
            for word, value in token.top
        ]
        assert sum(errors) / len(errors) < 0.06


def test_a_prefill_step_is_the_same_when_decode_runs_between_its_layers(checkpoint):
    def two_requests():
        stage = cpu_stage(checkpoint, range(2))
        stage.step(batch(Span(1, 0, 5, True)), [3, 4, 5, 6, 7])
        return stage

    prompt, decode = batch(Span(2, 0, 6, True)), batch(Span(1, 5, 6, True), admit=False)
    stage, other = two_requests(), two_requests()
    expected = other.step(prompt, [8, 9, 10, 11, 12, 13]).hidden_TD, other.step(decode, [9])
    interrupts = []
    between = lambda: interrupts or interrupts.append(stage.step(decode, [9]))  # noqa: E731
    got = stage.step(prompt, [8, 9, 10, 11, 12, 13], interrupt=between)
    assert torch.equal(got.hidden_TD, expected[0])
    assert torch.equal(interrupts[0].hidden_TD, expected[1].hidden_TD)
