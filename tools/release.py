"""Builds a release: wheels, the source, the installer, their checksums and a signature on these.

    python -m tools.release --out dist/release --key KEY

One signature on `SHA256SUMS` covers every file. It is OpenSSH's (`ssh-keygen -Y sign`), which is on
every PC that can be logged in to; `deploy/install.sh` checks it before it takes anything. KEY is a
private key as `ssh-keygen -t ed25519` makes one; its public half is what users are given.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
NAMESPACE = "molink-release"
"""What a signature is for: one that was made for a mail or a commit is none on a release."""

OTHERS = (Path("deploy/install.sh"), Path("CHANGELOG.md"))


def main() -> None:
    """Build into an empty folder. Exits with a sentence where that cannot be."""
    parser = argparse.ArgumentParser(description="Builds a release.")
    parser.add_argument("--out", type=Path, required=True, help="folder, which is made anew")
    parser.add_argument("--key", type=Path, help="private key of OpenSSH; without it unsigned")
    given = parser.parse_args()
    if changed := _git("status", "--porcelain", "--untracked-files=no"):
        sys.exit(f"A release is of a commit, and files are changed: {changed.splitlines()[0]}")
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    build(given.out)
    write_sums(given.out)
    if given.key is None:
        print("unsigned: install.sh will refuse it; give --key (make release RELEASE_KEY=FILE)")
    else:
        sign(given.out, given.key)
    print("\n".join(sorted(path.name for path in given.out.iterdir())))


def build(out: Path) -> None:
    """Put wheel and source of MoLink, the simulator's wheel and other files there."""
    command = (sys.executable, "-m", "hatchling", "build", "--directory", str(out.absolute()))
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    simulator = (*command, "--target", "wheel")
    subprocess.run(simulator, cwd=ROOT / "sim", check=True, stdout=subprocess.DEVNULL)
    for file in OTHERS:
        shutil.copy(ROOT / file, out / file.name)


def write_sums(out: Path) -> None:
    """Write the checksum of each file, as `sha256sum` does."""
    files = sorted(path for path in out.iterdir() if path.name not in (SUMS, SIGNATURE))
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (out / SUMS).write_text("".join(lines), encoding="ascii")


def sign(out: Path, key: Path) -> None:
    """Sign the checksums; ssh-keygen asks for the key's password, if it has one."""
    command = ("ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(out / SUMS))
    subprocess.run(command, check=True)


def _git(*words: str) -> str:
    done = subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    main()
