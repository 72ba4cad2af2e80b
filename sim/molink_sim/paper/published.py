"""What the paper reports: means of TTFT, TPOT and whole answers, in seconds.

Jin et al., "MoLink", Findings of EMNLP 2025, pages 17633-17642, Tables 2 and 5. Tables 3 to 5 are
said to be made at 0.3 requests per second, but their line for 100 Mbps and 30 ms is Table 2's line
for 0.2, digit for digit; so 0.2 is what we simulate for all of them.
"""

from dataclasses import dataclass

__all__ = ["ABLATION_RATE_PER_S", "PUBLISHED", "PUBLISHED_ABLATION", "RATES_PER_S", "Means"]


@dataclass(frozen=True, slots=True)
class Means:
    """Seconds; None where there is no value."""

    ttft_s: float | None
    tpot_s: float | None
    latency_s: float | None


RATES_PER_S = (0.1, 0.2, 0.3, 0.7)
ABLATION_RATE_PER_S = 0.2

PUBLISHED = {
    ("vllm", 0.7): Means(17.3, 3.49, 509),
    ("helix", 0.7): Means(14.2, 3.42, 497),
    ("paper", 0.7): Means(9.29, 3.01, 449),
    ("vllm", 0.3): Means(6.20, 1.69, 306),
    ("helix", 0.3): Means(5.66, 1.65, 299),
    ("paper", 0.3): Means(5.23, 1.30, 256),
    ("vllm", 0.2): Means(3.74, 0.50, 111),
    ("helix", 0.2): Means(3.42, 0.47, 106),
    ("paper", 0.2): Means(3.30, 0.41, 93),
    ("vllm", 0.1): Means(3.39, 0.28, 74),
    ("helix", 0.1): Means(3.27, 0.29, 75),
    ("paper", 0.1): Means(3.23, 0.26, 69),
}
"""Table 2, by system and requests per second."""

PUBLISHED_ABLATION = {
    "none": Means(3.56, 0.48, 107.45),
    "chunks only": Means(3.37, 0.44, 99.25),
    "micro-batches only": Means(3.60, 0.43, 97.23),
    "both": Means(3.30, 0.41, 93.07),
}
"""Table 5; "w/" in its labels means "with only". "none" is 4 % better than the vLLM of Table 2."""
