"""`molink upgrade`: the newest of the releases from which this was installed.

The installer does it, which lies beside the installation: it checks the signature and the checksums
before it changes anything. Here is only what it cannot know.
"""

import subprocess

import click

from molink.errors import UserError
from molink.terminal.tables import DATA_FOLDER

INSTALLER, RELEASE = "install.sh", "release"
"""Files that `deploy/install.sh` leaves in the data folder where it installs a release."""


@click.command()
@click.option("--check", is_flag=True, help="Say which version there is, and change nothing.")
def upgrade(check: bool) -> None:
    """Install the newest release from where this one came, after its signature is checked.

    What runs goes on with the version that it has until it is started again.
    """
    from molink.config.data_dir import data_dir
    from molink.version import ROOT

    if (ROOT / ".git").exists():
        raise UserError(f"This is a checkout in {ROOT}: git pull there, then make venv.")
    folder = data_dir(DATA_FOLDER)
    if not (folder / RELEASE).exists():
        raise UserError(
            "This was not installed from a release, so nobody knows where a newer one is: "
            "sh install.sh --from URL --release-key FILE takes one."
        )
    words = ("sh", str(folder / INSTALLER), "--upgrade", *(["--check"] if check else []))
    if code := subprocess.run(words, check=False).returncode:
        raise click.exceptions.Exit(code)
