"""The catalogue for people, of the fields that `molink models --json` and `GET /catalogue` tell."""

from collections.abc import Mapping, Sequence
from typing import Any

from molink.printable import printable_line
from molink.terminal.amounts import bytes_text, duration_text, words_text
from molink.terminal.tables import Row
from molink_scheduler.units import gib_text

Fields = Mapping[str, Any]

UNKNOWN = "No known model has these words: `molink models` lists all."


def known_line(models: Sequence[Fields]) -> str:
    """How many models there are, and how many are served."""
    refused = sum(one["state"] == "refused" for one in models)
    if not models:
        return UNKNOWN
    also = f"; {refused} of them cannot be served yet, `molink models NAME` says why"
    also = also if refused else ""
    if len(models) == 1 and refused:
        return f"{models[0]['title']} cannot be served: {models[0]['why']}"
    return f"{len(models)} model{'s' * (len(models) != 1)}, the newest first{also}."


def known_row(model: Fields) -> Row:
    """A line of the list: parameters, sizes by format, context, licence."""
    sizes = model["bytes"]
    return {
        "name": model["name"],
        "parameters": parameters_text(model),
        "16 bits": _size(sizes, "16 bits"),
        "8 bits": _size(sizes, "8 bits"),
        "4 bits": _size(sizes, "4 bits") or _size(sizes, "MXFP4"),
        "context": f"{model['context_tokens'] // 1024}k",
        "licence": model["licence"],
        "released": model["released"],
        "state": model["state"],
    }


def parameters_text(model: Fields) -> str:
    """All parameters, and of a mixture of experts those that a token passes."""
    total, active = model["parameters"], model["active_parameters"]
    text = f"{total / 1e9:.1f}B" if total < 1e10 else f"{total / 1e9:.0f}B"
    is_mixture = active is not None and active < total / 2
    return f"{text}, {active / 1e9:.1f}B active" if is_mixture else text


def _size(sizes: Mapping[str, int], form: str) -> str:
    return bytes_text(sizes[form]) if form in sizes else ""


def fits_line(pcs: Sequence[Fields], models: Sequence[Fields]) -> str:
    """One sentence: which PCs, how many models run, and what the most useful one would be."""
    if not models:
        return UNKNOWN
    names = ", ".join(printable_line(str(one["name"])) for one in pcs)
    lent = gib_text(sum(one["memory_bytes"] for one in pcs))
    fitting = [one for one in models if one["fit"]]
    served = sum(one["state"] != "refused" for one in models)
    on = f"On {len(pcs)} PC{'s' * (len(pcs) != 1)} ({names}; {lent} lent)"
    if not fitting:
        return f"{on} none of these {served} models fits."
    best, fit = fitting[0], fitting[0]["fit"]
    return (
        f"{on} {len(fitting)} of {served} models run. {best['title']} in {fit['form']} is the "
        f"largest to read along: one user {words_text(fit['tokens_per_s_alone'])}, eight users "
        f"{_each(fit)}; {bytes_text(fit['fetched_bytes'])} to download."
    )


def _each(fit: Fields) -> str:
    rate = fit["tokens_per_s_each"]
    return "have no room" if rate is None else f"{words_text(rate)} each"


def fit_row(model: Fields) -> Row:
    """A line of what fits."""
    fit = model["fit"]
    each, fetch_s = fit["tokens_per_s_each"], fit["fetch_s"]
    return {
        "name": model["name"],
        "parameters": parameters_text(model),
        "format": fit["form"],
        "PCs": fit["pcs"],
        "tokens/s alone": _rate(fit["tokens_per_s_alone"]),
        "each of 8": "no room" if each is None else _rate(each),
        "first after": f"{fit['ttft_s']:.1f} s",
        "users": fit["users"],
        "download": bytes_text(fit["fetched_bytes"]),
        "takes": "" if fetch_s is None else duration_text(fetch_s),
    }


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f}" if tokens_per_s < 10 else f"{tokens_per_s:.0f}"


def left_out_line(models: Sequence[Fields], names_max: int) -> str:
    """Names of what does not fit or is not served."""
    names = [str(one["name"]) for one in models]
    more = f" and {len(names) - names_max} more" if len(names) > names_max else ""
    shown = ", ".join(names[:names_max])
    return f"Not on these PCs: {shown}{more}. `molink models NAME --for ...` says why of one."
