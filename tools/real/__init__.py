"""Published models as oracles: what MoLink computes with them, beside the library and llama.cpp."""
