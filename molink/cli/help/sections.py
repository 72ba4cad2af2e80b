"""Sections of the help of commands with many options; what stands in none is under "Options"."""

_WHO = (
    "--no-keys --api-tls --api-tls-cert --api-tls-key --allowed-host --cors-origin --strict "
    "--shared-cache"
)
_MODEL = (
    "--model --served-model-name --max-model-len --dtype --kv --generation-config --tool-parser "
    "--reasoning-parser"
)
_LOAD = "--queue-s --routing --ttft-target-s --tpot-target-ms --tbt-target-ms --tbt-percentile"
_RING = "--standby --no-shadow --micro-batches --wire --span-tokens --replay-log-gb"
_WATCHING = "--log-format --otlp --quiet"

SERVE = {
    "Address and users": f"--host --port {_WHO}",
    "Model": _MODEL,
    "Ring": (
        "--nodes --roles --layers --device --threads --attention-device --link --upload-mbps "
        f"{_RING}"
    ),
    "Memory and cache": (
        "--kv-tokens --kv-host-tokens --no-prefix-cache --cache-ram-gb --cache-disk-gb"
    ),
    "Drafts": "--drafter --draft-width-max",
    "Load that is taken": _LOAD,
    "Watching": f"{_WATCHING} --event-log",
}

UP = {
    "Address and users": f"--host --port {_WHO}",
    "Model": _MODEL,
    "Agents": (
        "--public-host --agents-port --broker --broker-port --broker-users --relay --relay-port "
        "--relay-secret-file --tls-cert --tls-key --tls-ca --min-nodes --wait --weights-mbps "
        "--audit-share --data-dir --replaces"
    ),
    "Plan": "--tpot-ms --context-tokens --prompt-tokens --answer-tokens --split",
    "Rings": f"--roles {_RING}",
    "Memory and cache": "--kv-host-tokens --no-prefix-cache",
    "Drafts": "--drafter --draft-width-max",
    "Load that is taken": _LOAD,
    "Watching": _WATCHING,
}

PLAN = {
    "What is planned": "--nodes --url --key --model --rings --split --data-dir",
    "Goal": "--tpot-ms --context-tokens --prompt-tokens --answer-tokens",
    "Weights and KV": "--weights --kv --kv-host-tokens --lender-ms --drafter",
    "Output": "--json",
}
