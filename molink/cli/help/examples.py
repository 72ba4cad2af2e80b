"""Examples of each command of ours, which stand at the end of its help."""

from molink.terminal.command_line import Examples

_SERVER = "http://192.168.1.10:8000"

EXAMPLES: Examples = {
    "backup": ("molink backup cluster.backup", "molink backup cluster.backup --data-dir second"),
    "bench": (
        "molink bench --concurrency 8 --requests 64",
        f"molink bench --url {_SERVER} --trace generated --rate 0.5 --json load.json",
    ),
    "cache clear": ("molink cache clear", f"molink cache clear --url {_SERVER}"),
    "cell list": ("molink cell list", "molink cell list --json"),
    "cell confirm": (
        "molink cell confirm anna ben",
        f"molink cell confirm anna ben --url {_SERVER}",
    ),
    "cell forget": ("molink cell forget anna ben", f"molink cell forget anna ben --url {_SERVER}"),
    "chat": ("molink chat", f"molink chat --url {_SERVER} --system 'Answer in one sentence.'"),
    "dashboard": ("molink dashboard", f"molink dashboard --url {_SERVER} --read-only"),
    "demo": ("molink demo", "molink demo --chat"),
    "generate": (
        "molink generate 'Once upon a time' --max-tokens 40",
        f"molink generate - --url {_SERVER} < prompt.txt",
    ),
    "import": (
        "molink import model.gguf --out model",
        "molink import plain --weights int4 --out rounded",
    ),
    "invite": ("molink invite", "molink invite --uses 1 --expires 7d --qr"),
    "invite list": ("molink invite list", "molink invite list --json"),
    "invite revoke": ("molink invite revoke anna", "molink invite revoke 0123456789abcdef"),
    "key create": (
        "molink key create --name anna --rate 60/min",
        "molink key create --name prometheus --scope watch",
    ),
    "key list": ("molink key list", "molink key list --json"),
    "key usage": ("molink key usage --since 7d", "molink key usage --since 30d --csv"),
    "key revoke": ("molink key revoke anna", "molink key revoke k3f9"),
    "key rotate": ("molink key rotate anna", "molink key rotate k3f9"),
    "node list": ("molink node list", "molink node list --json"),
    "logs": ("molink logs -f", "molink logs -n 1000"),
    "models": (
        'molink models --for "3090, 3060 12GB, 5070"',
        f"molink models qwen --for cluster --url {_SERVER}",
    ),
    "node forget": ("molink node forget anna", "molink node forget 0123456789abcdef"),
    "node move": ("molink node move anna ben", "molink node move"),
    "node remove": ("molink node remove anna", "molink node remove 0123456789abcdef"),
    "plan": (
        "molink plan qwen-7b --nodes nodes.toml",
        f"molink plan --url {_SERVER}",
    ),
    "pull": (
        "molink pull Qwen/Qwen2.5-0.5B-Instruct",
        "molink pull Qwen/Qwen2.5-7B-Instruct --quiet",
    ),
    "relay": (
        "molink relay --port 8002 --secret-file secret",
        "molink relay --host 192.168.1.10 --port 8002 --secret-file secret",
    ),
    "restore": (
        "molink restore cluster.backup",
        "molink restore cluster.backup --data-dir second",
    ),
    "service install": (
        "molink service install demo",
        "molink service install Qwen/Qwen2.5-7B-Instruct --port 8080",
    ),
    "service remove": ("molink service remove", "molink service remove --data-dir second"),
    "service status": ("molink service status", "molink service status --data-dir second"),
    "serve": (
        "molink serve demo --nodes 3 --link 100:30",
        "molink serve Qwen/Qwen2.5-0.5B-Instruct --port 8080",
    ),
    "status": ("molink status", f"molink status --url {_SERVER} --json"),
    "upgrade": ("molink upgrade", "molink upgrade --back"),
    "up": ("molink up demo", "molink up Qwen/Qwen2.5-7B-Instruct --public-host home.example"),
}
"""By the words of the command."""
