"""The library's table of tensors' names, which each process that loads a model makes once.

Its thousand patterns take a third of a second to compile."""

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

get_checkpoint_conversion_mapping("llama")
