"""A folder as others leave it: added words, marks of Windows, a trainer's names, own sampling."""

import json
import shutil
from codecs import BOM_UTF8

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from molink.models import DEMO_MODEL_DIR

ROWS = 4096
PROMPT = {"prompt": "Once upon a time", "max_tokens": 24}


@pytest.fixture(scope="module")
def beyond() -> str:
    """The last word that is added to the tokenizer, four behind the model's rows."""
    count = ROWS - len(AutoTokenizer.from_pretrained(DEMO_MODEL_DIR)) + 4
    return f"<|x{count - 1}|>"


@pytest.fixture(scope="module")
def wild(tmp_path_factory, beyond):
    folder = shutil.copytree(DEMO_MODEL_DIR, tmp_path_factory.mktemp("models") / "wild")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    added = [f"<|x{number}|>" for number in range(int(beyond[3:-2]) + 1)]
    tokenizer.add_tokens(added, special_tokens=True)
    tokenizer.eos_token = "<|end|>"
    tokenizer.save_pretrained(folder)
    weights = {
        f"_orig_mod.{name}": one for name, one in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", "generation_config.json"):
        known = json.loads((folder / name).read_text()) | {"eos_token_id": 2}
        (folder / name).write_text(json.dumps(known))
    for path in folder.glob("*.json"):
        path.write_bytes(BOM_UTF8 + path.read_bytes())
    return folder


@pytest.fixture(scope="module")
def server(tools, wild):
    with tools.serving(str(wild), "--nodes", "2", "--dtype", "float32") as server:
        yield server


async def text_of(tools, server, **fields) -> str:
    status, answer = await tools.post(server.url, "/v1/completions", PROMPT | fields)
    assert status == 200, answer
    return answer["choices"][0]["text"]


async def test_its_own_sampling_holds_where_a_request_is_silent(tools, server):
    own, same, other = [
        await text_of(tools, server, seed=11, **fields)
        for fields in ({}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.0, "top_p": 1.0})
    ]
    assert own == same != other
    (entry,) = (await tools.get(server.url, "/v1/models"))["data"]
    shown = entry["default_sampling_params"]
    assert shown == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }


async def test_temperatures_near_zero_are_greedy(tools, server):
    greedy = await text_of(tools, server, temperature=0, logprobs=1)
    assert greedy
    for temperature in (1e-6, 1e-38, 2.3e-308, 5e-324):
        for fields in ({}, {"top_p": 0.9}, {"min_p": 0.1, "top_k": 5}):
            asked = {"temperature": temperature, "logprobs": 1, **fields}
            assert await text_of(tools, server, **asked) == greedy


async def test_words_without_rows_are_refused_by_name_in_every_way(tools, server, beyond):
    last, asked = ROWS + 3, [{"role": "user", "content": f"Say {beyond}"}]
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    for path, body in (
        ("/v1/completions", {"prompt": f"Once {beyond}"}),
        ("/v1/completions", {"prompt": ["Once", f"Once {beyond}"]}),
        ("/v1/completions", {"prompt": [1, last]}),
        ("/generate", {"prompt": f"Once {beyond}"}),
        ("/generate", {"prompt_token_ids": [1, last]}),
        ("/v1/chat/completions", {"messages": asked}),
        ("/v1/responses", {"input": asked}),
        ("/v1/messages", {"messages": asked, "max_tokens": 4}),
        ("/v1/completions", {"prompt": "Once", "logit_bias": {str(last): 5}}),
        ("/v1/completions", {"prompt": "Once", "stop_token_ids": [last]}),
    ):
        status, answer = await tools.post(server.url, path, {"model": "wild", **body})
        assert status == 400 and str(last) in answer["error"]["message"], (path, body, answer)
    for constraint in (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": schema},
            }
        },
        {"structured_outputs": {"regex": "[a-z <|>0-9]{5,9}"}},
        {"structured_outputs": {"choice": [beyond, "yes"]}},
    ):
        assert await text_of(tools, server, temperature=1, seed=2, **constraint)
    events = (await tools.get(server.url, "/cluster/events"))["events"]
    assert not {one["kind"] for one in events} & {"ring_ended", "stage_lost", "request_moved"}


async def test_an_answer_ends_with_the_tokenizers_end(tools, server):
    body = {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 400,
        "skip_special_tokens": False,
    }
    _, answer = await tools.post(server.url, "/v1/chat/completions", body)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop" and "<|user|>" not in choice["message"]["content"]


def test_a_prompt_from_a_file_of_windows(tools, server):
    def generated(prompt: str, **options) -> str:
        line = ("generate", prompt, "--url", server.url, "--temperature", "0", "--max-tokens", "8")
        done = tools.run_molink(*line, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert generated("-", input="\ufeffOnce upon a time\r\n") == generated("Once upon a time")
