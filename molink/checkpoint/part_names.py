"""What are the modules around the decoder's layers called, and which stage needs them?

Architectures have no common names, so these lists grew with the models that were tried. Two read
them: pruning, which has the modules themselves at hand, and the shard plan, which has nothing but
the names of tensors. So a name that is missing here is a refusal there and a download too many
here, never a wrong answer.

No torch here.
"""

__all__ = [
    "ADDED_POSITIONS",
    "AFTER_LAYERS",
    "BEFORE_LAYERS",
    "OUTPUT_MATRICES",
    "TOKEN_EMBEDDINGS",
]

TOKEN_EMBEDDINGS = frozenset({"embed_tokens", "wte", "word_embeddings", "embed_in"})
"""Names of the token embeddings; with tied weights also the output matrix."""

OUTPUT_MATRICES = frozenset({"lm_head", "embed_out"})
"""Names of the matrix that turns hidden states into logits, where it is stored of its own."""

ADDED_POSITIONS = frozenset({"wpe", "embed_positions", "position_embeddings", "embed_pos"})
"""Names of position embeddings that are added to the token embeddings."""

BEFORE_LAYERS = frozenset(
    {
        "project_in",
        "word_embeddings_layernorm",
        "embed_norm",
        "emb_norm",
        "embed_tokens_layernorm",
        "emb_layer_norm",
        "embed_layer_norm",
        "embedding_layernorm",
    }
)
"""Names of modules between the token embeddings and the first layer."""

AFTER_LAYERS = frozenset(
    {
        "norm",
        "ln_f",
        "final_layer_norm",
        "final_layernorm",
        "project_out",
        "norm_f",
        "final_norm",
        "layer_norm",
    }
)
"""Names of modules after the last layer."""
