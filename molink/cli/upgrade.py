"""`molink upgrade`: the newest of the releases from which this was installed.

The installer does it, which lies beside the installation: it checks the signature and the checksums
before it changes anything. Here is only what it cannot know.
"""

import subprocess
import sys

import click

from molink.errors import UserError
from molink.terminal.tables import DATA_FOLDER

INSTALLER, RELEASE = "install.sh", "release"
"""Files that `deploy/install.sh` leaves in the data folder where it installs a release."""

AT_ONCE = (
    "at once: stages and plans that they start from now on are of the new version, which the old "
    "programs may not understand."
)


@click.command()
@click.option("--check", is_flag=True, help="Say which version there is, and change nothing.")
@click.option("--back", is_flag=True, help="Install the release that the last upgrade replaced.")
def upgrade(check: bool, back: bool) -> None:
    """Install the newest release from where this one came, after its signature is checked.

    Start what runs again at once: stages and plans that it starts are of the new version.
    """
    from molink.config.data_dir import data_dir
    from molink.control.versions import own_protocols
    from molink.version import ROOT

    if (ROOT / ".git").exists():
        raise UserError(f"This is a checkout in {ROOT}: git pull there, then make venv.")
    folder = data_dir(DATA_FOLDER)
    kept = folder / RELEASE
    if not kept.exists():
        raise UserError(
            "This was not installed from a release, so nobody knows where a newer one is: "
            "sh install.sh --from URL --release-key FILE takes one."
        )
    if check and back:
        raise UserError("--check and --back do not go together: give one of them.")
    before, written = own_protocols().newest, kept.stat().st_mtime_ns
    how = ["--back"] if back else ["--upgrade", *(["--check"] if check else [])]
    if code := subprocess.run(("sh", str(folder / INSTALLER), *how), check=False).returncode:
        raise click.exceptions.Exit(code)
    if kept.stat().st_mtime_ns != written:  # It is written whenever something was installed.
        click.echo(order_of_starts(before, _installed_protocol()))


def order_of_starts(before: int, now: int | None) -> str:
    """What is to be started again, and in which order, when the protocol was `before` and is `now`;
    None: that is not known."""
    if now is None or now == before:
        return f"Start the coordinator and the agents here again, in any order, and {AT_ONCE}"
    return (
        f"It speaks protocol {now} and spoke {before}: no ring has PCs of both numbers. Update as "
        "many PCs as can hold the model, then the coordinator, then the others. Start each again, "
        f"and {AT_ONCE}"
    )


def _installed_protocol() -> int | None:
    """Number that the installed build speaks; this process is of the one before. A folder `molink`
    where this was typed is not asked."""
    asked = "from molink.control.versions import own_protocols; print(own_protocols().newest)"
    told = subprocess.run(
        (sys.executable, "-I", "-c", asked), capture_output=True, text=True, check=False
    )
    number = told.stdout.strip()
    return int(number) if told.returncode == 0 and number.isdecimal() else None
