"""Checks of the PC itself: driver, torch, memory, WSL, disk, and what the cluster can expect."""

from molink.control.messages.base import ModelSize
from molink.control.versions import own_protocols
from molink.hardware.torch_builds import has_code, how_to_get_code
from molink_agent.doctor.facts import DoctorFacts, Finding, Result, fail, ok, skip, warn
from molink_agent.limits.lent import Lent, lent_devices, lent_disk_bytes, nothing_left
from molink_agent.probe.gpus import NO_DRIVER
from molink_scheduler.units import GB, gb_text

VRAM_USEFUL_BYTES = 2 * GB
"""Four layers of an 8B model with their KV; under it a card seldom gains a ring anything."""

DISK_USEFUL_BYTES = 20 * GB
"""A whole 8B model in 16 bits and the next version of it: what a PC may be asked to hold."""

TYPICAL = ModelSize(name="a typical 8B model", layers=32, layer_bytes=436_224_000)
"""218 million numbers a layer in 16 bits: hidden size 4,096, MLP 14,336, 8 KV heads of 128."""

WEIGHTS_SHARE = 0.75
"""Part of a loan for weights; the rest is for KV and for what a step computes with."""

COMPILER = (
    "Triton compiles kernels for the card when a stage starts: install gcc and Python's headers "
    "(`sudo apt install gcc python3-dev`)."
)

MEMORY = "Close programs that take main memory, then start MoLink again."

MEMORY_OF_WSL = (
    "WSL pins at most half of its memory: in %UserProfile%\\.wslconfig on Windows write [wsl2] and "
    "below it memory=8GB or more, then run `wsl --shutdown`."
)

MIRRORED = (
    "In %UserProfile%\\.wslconfig on Windows write [wsl2] and below it networkingMode=mirrored, "
    "then run `wsl --shutdown` (Windows 11 22H2 or newer)."
)


def molink(facts: DoctorFacts) -> Finding:
    """Does the coordinator speak as this version of MoLink does?"""
    number, coordinator = own_protocols().newest, facts.known.speaks
    found = f"{facts.version}, protocol {number}"
    trouble = coordinator.trouble(number) if coordinator is not None else ""
    return fail("MoLink", found, trouble) if trouble else ok("MoLink", found)


def driver(facts: DoctorFacts) -> Finding:
    """Is there an NVIDIA driver, new enough for torch?"""
    name, gpus = "driver, CUDA", facts.gpus
    if facts.limits.lends_cpu_only:
        return ok(name, "not needed: device = cpu")
    if not gpus.gpus:
        return _no_gpu(facts, name)
    cuda = "unknown" if gpus.cuda is None else f"{gpus.cuda[0]}.{gpus.cuda[1]}"
    found = f"driver {gpus.driver or 'unknown'} runs CUDA up to {cuda}"
    built = facts.torch.cuda.partition(".")[0]
    if gpus.cuda is not None and built.isdecimal() and int(built) > gpus.cuda[0]:
        where = "on Windows" if facts.wsl else "on this PC"
        found = f"{found}, torch needs {facts.torch.cuda}"
        return fail(name, found, f"Update the NVIDIA driver {where}.")
    return ok(name, found)


def _no_gpu(facts: DoctorFacts, name: str) -> Finding:
    reason = facts.gpus.reason or "the driver sees no GPU"
    if reason != NO_DRIVER:
        remedy = "Restart the PC; if that does not help, install the driver anew."
    elif facts.wsl is not None:
        remedy = "Install the NVIDIA driver on Windows; inside WSL none must be installed."
    else:
        remedy = "With an NVIDIA card: install its driver (`sudo ubuntu-drivers install`)."
    if facts.limits.wants_gpu:
        return fail(name, reason, remedy)
    return warn(name, f"{reason}; the CPU is lent", remedy)


def torch(facts: DoctorFacts) -> Finding:
    """Can torch compute on the cards that the driver sees?"""
    name, answer = "torch, GPU", facts.torch
    if not answer.version:
        return fail(name, answer.problem, "Install MoLink anew: torch comes with it.")
    if facts.limits.lends_cpu_only or not facts.gpus.gpus:
        return ok(name, f"torch {answer.version}, on the CPU")
    if not answer.cuda:
        return fail(
            name,
            f"torch {answer.version} was built without CUDA",
            "Install a torch with CUDA: see https://pytorch.org/get-started/locally.",
        )
    without = _card_without_code(facts)
    if without is not None:
        return without
    if len(answer.gpus) < len(facts.gpus.gpus):
        found = f"torch {answer.version} computes on {len(answer.gpus)} of {len(facts.gpus.gpus)}"
        remedy = "Install a torch for this card and driver, or set device = cpu."
        return fail(name, f"{found} GPUs: {answer.problem or 'no reason given'}", remedy)
    found = f"torch {answer.version} computes on {', '.join(answer.gpus)}"
    if answer.kernel_problem:
        slower = f"{found}, slower than it could: {answer.kernel_problem}"
        return warn(name, slower, COMPILER)
    if answer.pinning_problem:
        waiting = (
            f"{found}, but waits for copies: no memory can be pinned ({answer.pinning_problem})"
        )
        return warn(name, waiting, MEMORY_OF_WSL if facts.wsl else MEMORY)
    if answer.graph_problem:
        slower = f"{found}, slower than it could: {answer.graph_problem}"
        return warn(name, slower, "Update the NVIDIA driver; decode steps are launched until then.")
    return ok(name, found)


def _card_without_code(facts: DoctorFacts) -> Finding | None:
    """Finding on the first lent card that this torch has no code for; None: it has for all."""
    built, limits = facts.torch.architectures, facts.limits
    for gpu in facts.gpus.gpus:
        is_lent = limits.device == "auto" or f"cuda:{gpu.index}" in limits.device_names
        if not built or gpu.capability is None or not is_lent or has_code(gpu.capability, built):
            continue
        major, minor = gpu.capability
        remedy = how_to_get_code(gpu.capability, facts.gpus.driver_number)
        found = (
            f"torch {facts.torch.version} has no code for {gpu.name} (capability {major}.{minor})"
        )
        return fail("torch, GPU", found, remedy[:1].upper() + remedy[1:] + ".")
    return None


def unusable_cards(facts: DoctorFacts) -> str:
    """Why torch does not compute on the cards that would be lent, and what to do; empty: it
    does."""
    failed = (one for one in (driver(facts), torch(facts)) if one.result is Result.FAIL)
    return next((f"{one.found}. {one.remedy}" for one in failed), "")


def vram(facts: DoctorFacts) -> Finding:
    """How much memory does the device that is lent have for us?"""
    lent = lent_devices(facts.limits, facts.machine, facts.gpus)
    name = "VRAM free" if facts.lends_gpu else "memory free"
    if not lent:
        found = f"device = {facts.limits.device} is not on this PC"
        return fail(name, found, "`molink agent set device auto`")
    found = "; ".join(
        f"{part.device}: {gb_text(part.lent_bytes)} of {gb_text(part.total_bytes)} to lend"
        for part in lent
    )
    best = max(lent, key=lambda part: part.lent_bytes)
    if best.lent_bytes >= VRAM_USEFUL_BYTES:
        return ok(name, found)
    if best.bound_by == "free memory":
        return warn(name, found, "Close programs that fill it, or lend another device.")
    return warn(
        name, found, f"`molink agent set {best.bound_by} {VRAM_USEFUL_BYTES // GB}` or more"
    )


def wsl(facts: DoctorFacts) -> Finding:
    """Is WSL the kind that has a GPU and a network that neighbours reach?"""
    kind = facts.wsl
    if kind is None:
        return ok("WSL", "a Linux of its own")
    found = f"WSL {kind.version}, networking {kind.networking}"
    if kind.version == 1:
        remedy = "In PowerShell: `wsl --set-version NAME 2`, NAME as `wsl --list` shows it."
        return fail("WSL", f"{found}: it has no GPU", remedy)
    if kind.networking == "none":
        return fail("WSL", found, MIRRORED)
    if kind.networking == "unknown":
        return warn("WSL", found, "In PowerShell: `wsl --update`.")
    if kind.networking in ("mirrored", "bridged"):
        return ok("WSL", found)
    return warn("WSL", f"{found}: neighbours reach it through the relay only", MIRRORED)


def disk(facts: DoctorFacts) -> Finding:
    """Is there room for weights?"""
    free, held = facts.machine.disk_free_bytes, facts.weights_bytes
    lent = lent_disk_bytes(facts.limits, free, held)
    found = f"{gb_text(lent)} to lend, {gb_text(held)} of it with weights already"
    if lent >= DISK_USEFUL_BYTES:
        return ok("disk", found)
    capped = facts.limits.disk_bytes is not None and lent >= facts.limits.disk_bytes
    free_some = f"Free some: {gb_text(DISK_USEFUL_BYTES)} hold an 8B model and its successor."
    remedy = f"`molink agent set disk_gb {DISK_USEFUL_BYTES // GB}`" if capped else free_some
    return warn("disk", found, remedy) if lent >= GB else fail("disk", found, remedy)


def limits(facts: DoctorFacts) -> Finding:
    """Is the file limits.toml understood?"""
    if facts.limits_problem:
        return fail("limits", facts.limits_problem, "Mend the line, or remove the file.")
    return ok("limits", "understood")


def idle(facts: DoctorFacts) -> Finding:
    """Can it be told whether somebody uses the PC?"""
    name, answer = "idle time", facts.input_idle
    if facts.limits.only_when_idle_minutes is None:
        return skip(name, "not needed: only_when_idle_minutes is not set")
    if answer.seconds is None:
        return fail(
            name,
            "nobody tells when this PC was last used, so it is never lent",
            "Install xprintidle (X11), or `molink agent set only_when_idle_minutes none`.",
        )
    return ok(name, f"{answer.seconds:.0f} s since the last input, says {answer.source}")


def swaps(facts: DoctorFacts) -> Finding:
    """Do the fast kernels give what the library does, with the weights that serve here?"""
    if not facts.swaps:
        return ok("kernels", "all that was tried with the weights that serve here is right")
    remedy = "Answers are right, and slower: please report this line and the model's name."
    return warn("kernels", "; ".join(facts.swaps), remedy)


def contribution(facts: DoctorFacts) -> Finding:
    """How many layers of the cluster's model fit, or of a typical one before it is known?"""
    name, model = "contribution", facts.known.model or TYPICAL
    lent = lent_devices(facts.limits, facts.machine, facts.gpus)
    disk_bytes = lent_disk_bytes(facts.limits, facts.machine.disk_free_bytes, facts.weights_bytes)
    trouble = nothing_left(facts.limits, lent, disk_bytes, model)
    if trouble is not None:
        found, _, remedy = trouble.partition(": ")
        return fail(name, found, remedy[:1].upper() + remedy[1:])
    count = min(
        model.layers,
        sum(layers_that_fit(model, part) for part in lent),
        disk_bytes // model.layer_bytes,
    )
    why = "" if facts.known.model else " (the cluster's model is not known yet)"
    return ok(name, f"about {count} of {model.layers} layers of {model.name}{why}")


def layers_that_fit(model: ModelSize, lent: Lent) -> int:
    """Layers that fit into one device, and at least one where a layer fits at all."""
    needed = model.held_bytes(lent.element_bytes)
    return max(int(lent.lent_bytes * WEIGHTS_SHARE) // needed, int(lent.lent_bytes >= needed))
