"""Examples of the simulator's commands, which stand at the end of their help."""

from molink.terminal.command_line import Examples

EXAMPLES: Examples = {
    "sim run": (
        "molink sim run --model qwen-7b --gpu rtx4090 --stages 3 --rate 0.2 --duration-s 300",
        "molink sim run --trace trace.csv --json figures.json --page report.html",
    ),
    "sim plan": (
        "molink sim plan --model qwen-7b --nodes nodes.toml",
        "molink sim plan --model qwen-7b --nodes nodes.toml --target-rate 0.5 --json figures.json",
    ),
    "sim cache": (
        "molink sim cache --trace trace.jsonl",
        "molink sim cache --trace trace.jsonl --rings 4 --routing cache",
    ),
    "sim cell": (
        "molink sim cell --paper turns",
        "molink sim cell --paper turns --json figures.json",
    ),
    "sim compare": (
        "molink sim compare --scenario ring.toml",
        "molink sim compare --scenario ring.toml --model demo --json figures.json",
    ),
    "sim micro-batches": (
        "molink sim micro-batches --model qwen-7b --stages 3",
        "molink sim micro-batches --model qwen-7b --stages 5 --users 16 --latency-ms 50",
    ),
    "sim paper": (
        "molink sim paper --table 3",
        "molink sim paper --table 3 --assume software-30ms",
    ),
    "sim pools": (
        "molink sim pools --paper fig9",
        "molink sim pools --paper fig10 --json figures.json",
    ),
    "sim replay": ("molink sim replay events.0", "molink sim replay events.0 --json figures.json"),
    "sim sessions": (
        "molink sim sessions --sessions sessions.jsonl",
        "molink sim sessions --sessions sessions.jsonl --concurrency 4 --rings 2",
    ),
    "sim swarm": ("molink sim swarm --seeds 20", "molink sim swarm --seeds 20 --first-seed 100"),
}
"""By the words of the command."""
