"""The tables of the MoLink paper (EMNLP Findings 2025): published, reproduced, and MoLink today."""
