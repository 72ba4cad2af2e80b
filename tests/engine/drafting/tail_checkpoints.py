"""Small checkpoints whose own layer drafts, in each packaging, and the library's model of each."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel

from molink_scheduler.request import SamplingParams
from tests.engine.sampling.plain_sampling import plain_token
from tests.engine.tiny_models import EXPERTS, tiny_config, tiny_model

LAYERS = 4

GLM = dict(
    num_hidden_layers=LAYERS,
    head_dim=16,
    n_routed_experts=4,
    n_shared_experts=1,
    first_k_dense_replace=1,
    **EXPERTS,
)
LATENT = dict(
    q_lora_rank=24,
    kv_lora_rank=16,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=12,
    num_key_value_heads=4,
)
QWEN = dict(
    head_dim=16,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
)
QWEN_EXPERTS = dict(num_experts=4, shared_expert_intermediate_size=32, **EXPERTS)

NEXTN, MTP = "nextn", "mtp"

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "glm4_moe": (NEXTN, GLM | dict(use_qk_norm=True)),
    "glm4_moe_lite": (NEXTN, {k: v for k, v in (GLM | LATENT).items() if k != "head_dim"}),
    "deepseek_v3": (NEXTN, dict(num_hidden_layers=LAYERS)),
    "qwen3_next": (MTP, QWEN | QWEN_EXPERTS),
    "qwen3_5_text": (MTP, QWEN | dict(tie_word_embeddings=True)),
    "qwen3_5_moe_text": (MTP, QWEN | QWEN_EXPERTS),
}
"""Packaging and settings of each family; one has its output matrix tied to the embeddings."""

KINDS = ("glm4_moe", "qwen3_5_text")

OWN_NAMES = {
    NEXTN: ("model.layers.{N}.", "eh_proj", "enorm", "hnorm", "shared_head.norm", ""),
    MTP: ("mtp.", "fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "layers.0."),
}
"""Prefix of a packaging; its projection, norms, and what its block's names begin with."""


@dataclass
class Oracle:
    """The library's model and its drafting layer."""

    main: Any
    mtp: Any

    @torch.inference_mode()
    def hidden(self, known: list[int]) -> torch.Tensor:
        """Hidden states behind the last norm, [1, T, D], which the library's drafts are fed."""
        return self.main.model(torch.tensor([known])).last_hidden_state

    @torch.inference_mode()
    def next_token(self, known: list[int], prompt: int, params: SamplingParams) -> int:
        """Token that the model draws behind `known`."""
        return self._drawn(self.hidden(known), known, prompt, params)

    @torch.inference_mode()
    def drafts(
        self,
        known: list[int],
        prompt: int,
        params: SamplingParams,
        count: int,
        strange: dict[int, int] | None = None,
    ) -> list[int]:
        """So many drafts behind `known`; `strange`: rows that were given other next tokens."""
        hidden_1TD, next_ids = self.hidden(known[:-1]), known[1:]
        for row, token in (strange or {}).items():
            next_ids[row] = token
        drafts = list[int]()
        for _ in range(count):
            positions = torch.arange(1, len(next_ids) + 1)[None]
            given = hidden_1TD, positions, None
            out_1TD = self.mtp.forward_layer(0, *given, input_ids=torch.tensor([next_ids]))
            drafts.append(self._drawn(out_1TD, known + drafts, prompt, params))
            hidden_1TD = torch.cat([hidden_1TD, out_1TD[:, -1:]], 1)
            next_ids = [*next_ids, drafts[-1]]
        return drafts

    def _drawn(self, out_1TD, known: list[int], prompt: int, params: SamplingParams) -> int:
        logits = self.main.lm_head(out_1TD[0, -1]).numpy()
        return plain_token(logits, params, tuple(known[:prompt]), tuple(known[prompt:]))


def save_with_layer(family: str, directory: Path, seed: int = 0) -> Oracle:
    """Write a checkpoint of this family with a drafting layer; the library's models of it."""
    packaging, settings = FAMILIES[family]
    kinds = ["linear_attention", "full_attention"] * (LAYERS // 2)
    sizes = [dict(num_hidden_layers=LAYERS), dict(num_hidden_layers=LAYERS + 1)]
    if packaging == MTP:
        sizes = [
            one | dict(layer_types=kinds + ["full_attention"] * n) for n, one in enumerate(sizes)
        ]
    whole = tiny_model(tiny_config(family, **(settings | sizes[1])), seed)
    main = tiny_model(tiny_config(family, **(settings | sizes[0])), seed)
    main.load_state_dict(whole.state_dict(), strict=False)
    main.save_pretrained(directory)
    oracle = Oracle(main, _library_layer(main, whole.model.layers[LAYERS], seed))
    _add_layer(packaging, directory, whole, oracle.mtp.layers[0])
    return oracle


def _library_layer(main: Any, block: Any, seed: int) -> Any:
    config = main.config
    config.num_mtp_layers = 1
    if getattr(config, "layer_types", None):
        config.mtp_layer_types = ["full_attention"]
    if getattr(config, "mlp_layer_types", None):
        config.mtp_mlp_layer_types = ["sparse"]
    mtp = MtpModel(main, 1).float().eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in mtp.layers.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
            parameter.copy_(noise * scale if parameter.dim() > 1 else parameter + noise * scale)
    mtp.layers[0].mtp_block.load_state_dict(block.state_dict())
    return mtp


def _add_layer(packaging: str, directory: Path, whole: Any, layer: Any) -> None:
    """Put the drafting layer beside the model's tensors, under the names of its packaging."""
    whole.save_pretrained(directory / "whole")
    stored = load_file(directory / "whole" / "model.safetensors")
    prefix, projection, enorm, hnorm, norm, block = OWN_NAMES[packaging]
    prefix, begin = prefix.format(N=LAYERS), f"model.layers.{LAYERS}."
    own = {
        prefix + block + name.removeprefix(begin): tensor
        for name, tensor in stored.items()
        if name.startswith(begin)
    }
    parts = (projection, layer.eh_proj), (enorm, layer.enorm), (hnorm, layer.hnorm)
    for name, module in (*parts, (norm, layer.post_norm)):
        own[f"{prefix}{name}.weight"] = module.weight.detach().clone()
    if packaging == NEXTN:  # Copies, as such checkpoints have, which nobody reads.
        own[prefix + "embed_tokens.weight"] = torch.zeros(4, 4)
        own[prefix + "shared_head.head.weight"] = torch.zeros(4, 4)
    model = load_file(directory / "model.safetensors")
    save_file(model | own, directory / "model.safetensors", {"format": "pt"})


def change_tensors(directory: Path, change) -> None:
    """Write the tensors of a checkpoint anew, as `change` gives them of a dictionary."""
    path = directory / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})


def change_config(directory: Path, **settings: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
