"""Commands of the pages that no test executes as they stand, each with the reason.

Only parsed, all of them; what some do is tested elsewhere, under other conditions, as said here.
"""

import re

NOT_RUN = {
    r"make gpu( DEVICE=cuda:1)?": "a graphics card; tests/experiments/cards runs it in small",
    r"sh install\.sh --from .*|molink upgrade( --back)?": "HOST is the reader's; "
    "tests/deploy/test_release.py installs and upgrades from a release of its own",
    r"make fuzz": "hours; tests/fuzz runs it with fewer",
    r"sh deploy/install\.sh( --torch cpu| --uninstall --purge)?": "downloads gigabytes; "
    "tests/deploy/test_install.py runs the script with small wheels",
    r"\S*pip install .*": "changes the environment in which the tests run",
    r"powershell .*": "Windows; tests/deploy/test_install_ps1.py reads the script",
    r"docker .*": "Docker; tests/deploy/test_containerfile.py checks the file and its commands",
    r"kubectl .*": "Kubernetes; tests/deploy/test_kubernetes.py checks files and commands",
    r"molink agent service .*": "systemd; tests/agent/service runs it with a stand-in",
    r"molink (service|logs) .*": "systemd; tests/cli/upkeep runs them with a stand-in",
    r"molink restore cluster\.backup .*": "FOLDER is the reader's; tests/cli/upkeep restores one",
    r"molink up OTHER .*--replaces .*|molink node move .*": "two rings; "
    "tests/end_to_end/test_model_change.py changes their model",
    r"molink agent logs -f": "goes on until Ctrl-C; tests/agent/cli runs it",
    r"git (worktree|show) .*": "needs a checkout with an older commit",
    r"molink up MODEL --port 8000 --api-tls": "what is asked behind it speaks plain HTTP; "
    "tests/end_to_end/test_reverse_proxy.py tries TLS",
    r"git pull .*": "fetches from where the reader has cloned",
    r"(sudo )?\S*python3? -m tools\.experiments\..*": "minutes to hours, some as root; "
    "tests/experiments/test_documented_commands.py starts each and checks its options",
    r"\S*python -m tools\.trace .*": "goes on until Ctrl-C; tests/trace runs it",
    r"python -m tools\.real\.edits .*": "a published model; tests/real tries its parts",
    r"python -m pytest .*": "among the tests themselves",
    r"python -m tests\.fuzz\.model_files .*": "half an hour; tests/fuzz has a few hundred inputs",
    r"python tools/random_llama\.py .*": "writes 180 MB; the experiments' tests make smaller ones",
    r"python tools/cycle_model\.py .*": "needs 180 MB; tests/experiments makes smaller ones",
    r"python tools/demo_model/corpus\.py .*": "writes 20,000 documents, for minutes",
    r"python tools/demo_model/acceptance\.py .*": "minutes; tests/models measures less",
    r"molink (serve|up) MODEL --roles prefill,decode( --min-nodes 2)?": "MODEL is the reader's; "
    "tests/end_to_end/test_roles.py serves one so, in one PC and of agents",
    r"curl .* -X POST http://HOST:8000/cluster/cache/clear": "HOST is the reader's; "
    "tests/api/test_admin.py asks it",
    r"curl .*/cluster/nodes/ID/resume": "ID is the reader's; tests/api/test_admin.py asks it",
    r"curl .*/(gen-ID|resp_ID)( .*)?": "the id is drawn; tests/api/test_kept.py reads some",
    r"molink agent set lend_\w+ .*": "an agent that runs; tests/agent/cli sets it",
    r"molink cell .*": "PCs anna and ben are the reader's; tests/cli/test_cell.py types it",
    r"curl .*http://HOST:8000/cell/confirm": "HOST is the reader's; tests/api/test_cell.py asks it",
    r"molink cache clear --url http://HOST:8000": "HOST is the reader's; tests/cli/test_cache.py",
    r"molink up MODEL --drafter .*": "tests/end_to_end/test_agents_draft.py has agents fetch one",
    r"molink serve demo .* --drafter .*": "tests/end_to_end/test_drafts.py serves so",
    r"molink serve MODEL --nodes 3 --link 100:30 --queue-s .*": "a model that is written first",
    r"molink serve MODEL --device cpu --attention-device host": "a model of the reader's; "
    "tests/end_to_end/test_attention_device.py serves so",
    r"molink import .*": "models of gigabytes; tests/importing imports small ones",
    r"molink serve Qwen3-8B-int4": "the folder that the import above it makes",
    r"molink bench .*": "ten minutes; tests/bench runs shorter ones",
    r"molink models .*": "tests/docs_site/test_can_i_run_page.py makes the page of its answers",
    r"molink sim paper .*": "a trace that is to be downloaded; tests/sim/paper makes one",
    r"molink sim cache .*": "a trace that is to be downloaded; tests/sim/cache makes one",
    r"molink sim pools .*": "minutes; tests/sim/pools runs the command with fewer requests",
    r"molink sim cell --paper long": "minutes; tests/sim/cell plays fewer requests",
    r"molink sim cell .*": "tests/sim/cell runs the command",
    r"molink sim sessions .*": "minutes; tests/sim/test_session_experiment.py plays shorter ones",
    r"python -m tools\.agent_sessions .*": "what it writes is tested in tests/workload",
    r"molink sim compare .*": "minutes, of which a real ring takes most; tests/sim/validation",
    r"molink sim swarm --seeds 300": "minutes; one seed is run below it",
    r"molink sim swarm --seeds 2500 .*": "minutes; tests/sim has a smaller one",
    r"molink sim micro-batches .*": "minutes; tests/sim has a smaller one",
}


def reason_not_to_run(line: str) -> str | None:
    """Why a line is not executed; None where it is."""
    return next((why for what, why in NOT_RUN.items() if re.fullmatch(what, line)), None)
