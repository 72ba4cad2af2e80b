"""Small targets and assistants of Gemma 4 in both packagings, and the library's drafts of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator
from transformers.models.gemma4_assistant.modeling_gemma4_assistant import (
    Gemma4AssistantForCausalLM,
)
from transformers.models.gemma4_unified_assistant.modeling_gemma4_unified_assistant import (
    Gemma4UnifiedAssistantForCausalLM,
)

from molink_scheduler.request import SamplingParams
from tests.engine.sampling.plain_sampling import plain_token
from tests.engine.tiny_models import (
    ARCHITECTURES,
    COMMON,
    tiny_config,
    tiny_model,
    with_weights_that_matter,
)

PLAIN, UNIFIED = "gemma4", "gemma4_unified"
MODELS = {PLAIN: Gemma4AssistantForCausalLM, UNIFIED: Gemma4UnifiedAssistantForCausalLM}
"""The library's class of each packaging."""

HEADS = {name: ARCHITECTURES["gemma4_text"][name] for name in ("head_dim", "global_head_dim")}
E_SERIES = dict(num_kv_shared_layers=2, hidden_size_per_layer_input=8, use_double_wide_mlp=True)
E_SERIES |= dict(vocab_size_per_layer_input=COMMON["vocab_size"], attention_k_eq_v=False)
E_SERIES |= dict(num_global_key_value_heads=None)

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shares": E_SERIES
    | dict(layer_types=["sliding_attention", "full_attention"] * 3 + ["full_attention"]),
    "unified": dict(model_type="gemma4_unified_text"),
}
"""Settings of the targets: without shared KV, with, and of the other packaging."""

SOURCES = {"plain": 4, "shares": 3, "unified": 4}
"""The first layer that each assistant reads, of seven."""


@dataclass
class Assisted:
    """The library's model and its assistant."""

    main: Any
    assistant: Any

    @torch.inference_mode()
    def next_token(self, known: list[int], prompt: int, params: SamplingParams) -> int:
        """Token that the model draws behind `known`."""
        logits = self.main(torch.tensor([known]), use_cache=False).logits[0, -1]
        return drawn(logits, known, prompt, params)

    @torch.inference_mode()
    def drafts(self, known, prompt, params, count, strange=None) -> list[int]:
        """So many drafts behind `known`: over keys and values of all of its tokens but the last.
        Greedy ones are those of the library's generator."""
        given = dict(output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
        outputs = self.main(torch.tensor([known[:-1]]), **given)
        hidden, drafts = outputs.hidden_states[-1][:, -1:], list[int]()
        embeddings = self.main.get_input_embeddings()
        for _ in range(count):
            last = torch.tensor([[(known + drafts)[-1]]])
            made = self.assistant(
                inputs_embeds=torch.cat([embeddings(last), hidden], -1),
                position_ids=torch.tensor([[len(known) - 1]]),
                shared_kv_states=dict(outputs.shared_kv_states),
                use_cache=False,
            )
            hidden = made.last_hidden_state
            drafts.append(drawn(made.logits[0, -1], known + drafts, prompt, params))
        if count and params == SamplingParams(params.max_tokens, temperature=0.0):
            assert drafts == self._candidates(known, outputs, count)
        return drafts

    def _candidates(self, known: list[int], outputs: Any, count: int) -> list[int]:
        settings = self.main.generation_config
        settings.max_length = len(known) + count + 1
        self.assistant.generation_config.num_assistant_tokens = count
        given = self.assistant, self.main.get_input_embeddings(), settings
        generator = SinglePositionMultiTokenCandidateGenerator(*given)
        ids, _ = generator.get_candidates(torch.tensor([known]), {}, outputs, False, 0)
        return ids[0, len(known) :].tolist()


def drawn(logits, known: list[int], prompt: int, params: SamplingParams) -> int:
    return plain_token(logits.numpy(), params, tuple(known[:prompt]), tuple(known[prompt:]))


def save_assisted(
    target: str,
    directory: Path,
    of_both: Mapping[str, Any] = {},
    of_text: Mapping[str, Any] = {},
    **settings: Any,
) -> Assisted:
    """Write a target to `directory`, and its assistant to `assistant` in it; the library's models
    of both. `of_both`: settings of the target and of the assistant's text model; `of_text`: of that
    alone; `settings`: of the assistant."""
    own = ARCHITECTURES["gemma4_text"] | SETTINGS[target] | dict(of_both)
    main = tiny_model(tiny_config("gemma4_text", **own))
    main.save_pretrained(directory)
    keep_all_kv(main)
    packaging = UNIFIED if target == "unified" else PLAIN
    own |= {"text": of_text}
    return Assisted(main, save_assistant(packaging, own, directory / "assistant", **settings))


def keep_all_kv(main: Any) -> None:
    """Have the last layer of each kind hand on its KV, as the library's comment says that it does
    for assistants, and as its code does where layers share KV only."""
    kinds = main.config.layer_types[
        : len(main.config.layer_types) - main.config.num_kv_shared_layers
    ]
    for number in {kind: number for number, kind in enumerate(kinds)}.values():
        main.model.layers[number].self_attn.store_full_length_kv = True


def save_assistant(packaging: str, target: Mapping[str, Any], directory: Path, **settings) -> Any:
    """Write an assistant of three layers for targets with these settings."""
    names = "attention_k_eq_v", "num_global_key_value_heads", "sliding_window"
    text = COMMON | HEADS | {name: target[name] for name in names}
    text |= dict(hidden_size=32, num_hidden_layers=3, num_kv_shared_layers=3)
    text |= dict(layer_types=["sliding_attention", "sliding_attention", "full_attention"])
    if packaging == PLAIN:
        text |= dict(hidden_size_per_layer_input=0, vocab_size_per_layer_input=0)
    given = dict(backbone_hidden_size=COMMON["hidden_size"]) | settings
    text |= target["text"]
    text_config = with_all_shared(AutoConfig.for_model(f"{packaging}_text", **text))
    config = AutoConfig.for_model(f"{packaging}_assistant", text_config=text_config, **given)
    assistant = with_weights_that_matter(MODELS[packaging](config), seed=1)
    if config.use_ordered_embeddings:
        order = torch.randperm(text["vocab_size"], generator=torch.Generator().manual_seed(2))
        assistant.masked_embedding.token_ordering.copy_(order)
    assistant.save_pretrained(directory)
    return assistant


def with_all_shared(config: Any) -> Any:
    """The config with layers that all read others' KV: transformers 5.23 refuses to say so of a
    model whose every layer does, and so to build any assistant."""
    kind = type(config)
    modes = property(lambda self: ["reuse"] * self.num_hidden_layers)
    config.__class__ = type(kind.__name__, (kind,), {"kv_sharing_modes": modes})
    return config
