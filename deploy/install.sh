#!/bin/sh
# Installs MoLink for one user, on Linux or inside WSL2. Never needs root.
#
# First it looks at everything that an installation can fail on, and says of each in one sentence
# what is missing and how to get it. Only when nothing is missing does it make anything: a virtual
# environment in ~/.local/share/molink, and the link ~/.local/bin/molink. --uninstall removes both.
# Running it again repairs or upgrades.
set -eu

PYTHON_MINOR_MIN=11
# The oldest Python 3 with everything that MoLink uses (tomllib, asyncio.TaskGroup).
DISK_MIB_CUDA=12288
# torch with CUDA unpacks to about 6 GiB, and pip keeps what it downloads beside it meanwhile.
DISK_MIB_CPU=3072
# Where torch is there already.
DISK_MIB_UPGRADE=1024
# torch without CUDA unpacks to about 1 GiB, everything else to less than half of that.
DRIVER_CUDA_13=580
# The first NVIDIA driver that runs programs of CUDA 13, which PyPI's torch is built with.
DRIVER_CUDA_12=525
# The first that runs programs of CUDA 12; torch's own index has builds for it.
CAPABILITY_CUDA_13=75
# Compute capability x 10 of the oldest GPUs that CUDA 13 knows (Turing: RTX 20, GTX 16).
CAPABILITY_CUDA_12=50
CAPABILITY_CUDA_12_MAX=90
# Of the oldest and the newest that torch's build for CUDA 12.6 has code for (RTX 50 have 120).
INDEX_CPU=https://download.pytorch.org/whl/cpu
INDEX_CUDA_12=https://download.pytorch.org/whl/cu126
RELEASE_KEY=
# Public key of OpenSSH that signs releases; while it is empty, --release-key names one.
EXIT_MISSING=2

usage() {
    cat <<END
Usage: install.sh [--check | --upgrade | --back | --uninstall [--purge]]
                  [--from PATH_OR_WHEEL_OR_RELEASE]
                  [--release-key FILE] [--python PYTHON] [--torch auto|cpu|cuda]
                  [--torch-index URL] [--pipx] [--coordinator]

  --check        say what is missing, change nothing (exit 0: all there, 2: something is missing)
  --from         what to install: a checkout, a wheel, or the folder or URL of a release; without
                 it the checkout of this script
  --release-key  file with the public key (ssh-ed25519 ...) that has signed the release
  --upgrade      the newest release from where the last one came; with --check only say which
  --back         the release that the last upgrade has replaced, which is kept; again: forth
  --python       the Python to use; without it the first on PATH that is new enough
  --torch        which build of torch; auto takes CUDA where an NVIDIA driver runs
  --torch-index  take torch from this package index
  --pipx         let pipx keep the environment
  --coordinator  also what somebody who runs a cluster uses: the dashboard, the import of GGUF
                 files, the simulator (of a wheel: molink_sim's, beside it); remembered
  --uninstall    remove the services, the environment and the link
  --purge        with --uninstall: also what the agent keeps (its key, its limits, model weights)
END
}

ok() { printf 'ok       %s\n' "$*"; }
note() { printf 'note     %s\n' "$*"; }
missing() {
    printf 'missing  %s\n' "$*"
    missing_count=$((missing_count + 1))
}
fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit "$EXIT_MISSING"
}
has() { command -v "$1" >/dev/null 2>&1; }

# --- what is there -----------------------------------------------------------------------------

package_manager() {
    for manager in apt-get dnf pacman; do
        if has "$manager"; then
            echo "$manager"
            return
        fi
    done
    echo other
}

find_python() {
    for candidate in ${python_wanted:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if has "$candidate" && "$candidate" -c "import sys
sys.exit(sys.version_info < (3, $PYTHON_MINOR_MIN))" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
}

how_to_get_python() {
    case $(package_manager) in
        apt-get) echo "sudo apt install python3 python3-venv (Debian 12, Ubuntu 24.04 or newer;" \
            "on Ubuntu 22.04: python3.11 python3.11-venv)" ;;
        dnf) echo "sudo dnf install python3.12" ;;
        pacman) echo "sudo pacman -S python" ;;
        *) echo "install it with your system's package manager" ;;
    esac
}

how_to_get_venv() {
    case $(package_manager) in
        apt-get) echo "sudo apt install $("$python" -c 'import sys
print("python%d.%d-venv" % sys.version_info[:2])')" ;;
        dnf) echo "sudo dnf reinstall python3-libs" ;;
        pacman) echo "sudo pacman -S python" ;;
        *) echo "install the venv module of this Python with your system's package manager" ;;
    esac
}

how_to_get_driver() {
    case $(package_manager) in
        apt-get) echo "on Ubuntu: sudo ubuntu-drivers install; on Debian: sudo apt install" \
            "nvidia-driver (needs the non-free components)" ;;
        dnf) echo "enable RPM Fusion, then: sudo dnf install akmod-nvidia" ;;
        pacman) echo "sudo pacman -S nvidia-open" ;;
        *) echo "see NVIDIA's download page" ;;
    esac
}

wsl_kind() {
    case $(uname -r) in
        *[Mm]icrosoft*WSL2* | *WSL2*) echo wsl2 ;;
        *-Microsoft*) echo wsl1 ;;
        *microsoft*) echo wsl2 ;;
        *) echo none ;;
    esac
}

nvidia_smi() {
    for candidate in nvidia-smi /usr/lib/wsl/lib/nvidia-smi; do
        if has "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
}

nearest_directory() {
    directory=$1
    while [ ! -d "$directory" ]; do
        directory=$(dirname "$directory")
    done
    echo "$directory"
}

# --- the checks --------------------------------------------------------------------------------

check_python() {
    python=$(find_python)
    if [ -z "$python" ]; then
        missing "Python 3.$PYTHON_MINOR_MIN or newer${python_wanted:+ ($python_wanted is not)}:" \
            "$(how_to_get_python)"
        return
    fi
    ok "Python $("$python" -c 'import platform
print(platform.python_version())') ($python)"
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        ok "Python's venv module"
    else
        missing "Python's venv module: $(how_to_get_venv)"
    fi
}

check_pipx() {
    if [ "$with_pipx" = no ]; then
        return
    elif has pipx; then
        ok "pipx"
    else
        missing "pipx, which --pipx asks for: install it with your system's package manager," \
            "or leave --pipx out"
    fi
}

check_wsl() {
    case $(wsl_kind) in
        wsl1) missing "WSL2 (this distribution runs under WSL1, which has no GPU): in Windows," \
            "wsl --set-version ${WSL_DISTRO_NAME:-NAME} 2" ;;
        wsl2)
            ok "WSL2"
            if [ ! -d "/run/systemd/system" ]; then
                note "systemd is off in this WSL: windows/install.ps1 starts the agent at logon" \
                    "without it; to have it, put [boot] systemd=true into /etc/wsl.conf and run" \
                    "wsl --shutdown in Windows"
            fi
            ;;
    esac
}

# Sets torch_choice to cpu, cuda12 or cuda13.
check_gpu() {
    torch_choice=cpu
    smi=$(nvidia_smi)
    if [ -z "$smi" ]; then
        say_no_driver
    elif ! facts=$("$smi" --query-gpu=driver_version,compute_cap --format=csv,noheader 2>/dev/null)
    then
        note "nvidia-smi is there but fails: restart the PC if the driver was just updated; until" \
            "it works, torch comes without CUDA and the CPU is lent"
    else
        choose_cuda "$facts"
    fi
}

say_no_driver() {
    if [ "$(wsl_kind)" = wsl2 ]; then
        note "no NVIDIA driver in sight, so the CPU is lent; if this PC has an NVIDIA GPU, install" \
            "its driver in Windows (never inside WSL)"
    elif has lspci && lspci 2>/dev/null | grep -i 'nvidia' | grep -qiE 'vga|3d|display'; then
        note "there is an NVIDIA GPU but no driver, so only the CPU would be lent:" \
            "$(how_to_get_driver), restart, then run this again"
    else
        note "no NVIDIA driver, so the CPU is lent; for a GPU: $(how_to_get_driver)"
    fi
}

# The best GPU that the driver lets torch compute on decides: nvidia-smi prints a line
# "DRIVER, MAJOR.MINOR" for each.
choose_cuda() {
    driver=$(printf '%s\n' "$1" | sed -n '1s/\..*//p')
    capabilities=$(printf '%s\n' "$1" | sed 's/.*, *//; s/\.//' | sort -n)
    case $driver$(printf '%s' "$capabilities" | tr -d '\n') in
        '' | *[!0-9]*) driver=0 capabilities=0 ;;
    esac
    newest=$(printf '%s\n' "$capabilities" | tail -n 1)
    of_cuda12=$(best_between "$CAPABILITY_CUDA_12" "$CAPABILITY_CUDA_12_MAX")
    if [ "$driver" -ge "$DRIVER_CUDA_13" ] && [ "$newest" -ge "$CAPABILITY_CUDA_13" ]; then
        torch_choice=cuda13
        ok "NVIDIA driver $driver, for torch with CUDA 13"
    elif [ "$driver" -ge "$DRIVER_CUDA_12" ] && [ -n "$of_cuda12" ]; then
        torch_choice=cuda12
        ok "NVIDIA driver $driver, for torch with CUDA 12"
        [ "$newest" -le "$CAPABILITY_CUDA_12_MAX" ] || say_newer_driver
    elif [ "$newest" -gt "$CAPABILITY_CUDA_12_MAX" ]; then
        say_newer_driver
    elif [ "$driver" -ge "$DRIVER_CUDA_12" ]; then
        note "no build of torch has code for this GPU, which is too old, so the CPU is lent"
    else
        note "the NVIDIA driver ($driver) is older than $DRIVER_CUDA_12, so the CPU is lent; for" \
            "the GPU: $(how_to_update_driver)"
    fi
}

# The newest of the capabilities within these bounds; empty: there is none.
best_between() {
    printf '%s\n' "$capabilities" | awk -v low="$1" -v high="$2" \
        '$1 >= low && $1 <= high { best = $1 } END { if (best) print best }'
}

say_newer_driver() {
    note "the newest GPU needs torch for CUDA 13, and the NVIDIA driver ($driver) does not run it," \
        "so that GPU is not lent: update the driver to $DRIVER_CUDA_13 or newer, then run this" \
        "again; $(how_to_update_driver)"
}

how_to_update_driver() {
    if [ "$(wsl_kind)" = wsl2 ]; then
        echo "install the new driver in Windows (never inside WSL)"
    else
        how_to_get_driver
    fi
}

# What the person asked for goes before what was found. Sets torch_index; empty: PyPI's build.
choose_torch() {
    case $torch_wanted in
        cpu) torch_choice=cpu ;;
        cuda) [ "$torch_choice" = cuda12 ] || torch_choice=cuda13 ;;
    esac
    case $(uname -m)-$torch_choice in
        x86_64-cpu) torch_index=$INDEX_CPU ;;
        x86_64-cuda12) torch_index=$INDEX_CUDA_12 ;;
        *) torch_index= ;;
    esac
    torch_index=${torch_index_wanted:-$torch_index}
    ok "torch for $torch_choice from ${torch_index:-PyPI}"
}

check_disk() {
    need=$DISK_MIB_CUDA
    [ "$torch_choice" != cpu ] || need=$DISK_MIB_CPU
    if [ -f "$venv/torch-index" ] &&
        [ "$(sed 's/^[^ ]* //' "$venv/torch-index")" = "$torch_index" ]; then
        need=$DISK_MIB_UPGRADE
    fi
    place=$(nearest_directory "$root")
    free=$(df -Pk "$place" | awk 'NR == 2 { print int($4 / 1024) }')
    if [ "${free:-0}" -ge "$need" ]; then
        ok "disk: $free MiB free at $place, $need needed; model weights come on top"
    else
        missing "$((need - ${free:-0})) MiB of disk at $place ($need needed, ${free:-0} free):" \
            "remove something there, or set XDG_DATA_HOME to a bigger disk"
    fi
    [ -w "$place" ] || missing "the right to write to $place: check who owns it"
}

check_source() {
    source=$source_wanted
    here=$(cd "$(dirname "$0")/.." 2>/dev/null && pwd) || here=
    if [ -z "$source" ] && [ -n "$here" ] && is_checkout "$here"; then
        source=$here
    fi
    release=
    if [ -n "$source" ] && [ -f "$source/SHA256SUMS" ]; then
        release=file://$(cd "$source" && pwd)
    fi
    case $source in
        http://* | https://* | file://*) release=${source%/} ;;
    esac
    if [ -z "$source" ]; then
        missing "something to install: say --from CHECKOUT, --from WHEEL or --from RELEASE"
    elif [ -n "$release" ]; then
        [ -z "$python" ] || check_release
    elif is_checkout "$source" || { [ -f "$source" ] && [ "${source%.whl}" != "$source" ]; }; then
        ok "installs from $source"
        [ "$with_coordinator" = no ] || check_simulator
    else
        missing "something to install at $source: --from takes a checkout of MoLink or a wheel"
    fi
}

# Sets version and wheel of the release, whose list of checksums its key must have signed.
check_release() {
    if [ -n "$release_key_wanted" ] && [ -f "$release_key_wanted" ]; then
        RELEASE_KEY=$(sed -n '/^ssh-\|^ecdsa-\|^sk-/{p;q;}' "$release_key_wanted")
    fi
    if [ -z "$RELEASE_KEY" ]; then
        missing "the key that signs releases: --release-key FILE, which holds a line ssh-ed25519 ..."
        return
    fi
    if ! has ssh-keygen; then
        missing "ssh-keygen, which checks signatures: sudo apt install openssh-client, or alike"
        return
    fi
    listed=$(mktemp -d)
    trap 'rm -rf "$listed"' EXIT
    if ! { fetch SHA256SUMS "$listed" && fetch SHA256SUMS.sig "$listed"; }; then
        missing "a release at $release: SHA256SUMS and SHA256SUMS.sig cannot be fetched from there"
        return
    fi
    printf 'molink %s\n' "$RELEASE_KEY" >"$listed/signers"
    if ! ssh-keygen -q -Y verify -f "$listed/signers" -I molink -n molink-release \
        -s "$listed/SHA256SUMS.sig" <"$listed/SHA256SUMS" >/dev/null 2>&1; then
        missing "a good signature at $release: nothing that comes from there is to be trusted"
        return
    fi
    sums=$(cat "$listed/SHA256SUMS")
    wheel=$(printf '%s\n' "$sums" | sed -n 's/^[0-9a-f]\{64\}  \(molink-[0-9][^/ ]*\.whl\)$/\1/p')
    version=$(printf '%s' "$wheel" | sed 's/^molink-\([^-]*\)-.*/\1/')
    ok "release $version at $release, signed"
}

fetch() {
    "$python" -c 'import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=60) as answer, open(sys.argv[2], "wb") as file:
    shutil.copyfileobj(answer, file)' "$release/$1" "$2/$1" 2>/dev/null
}

# Fetches what is installed of a release, and compares it with its signed checksum.
fetch_release() {
    simulator=$(printf '%s\n' "$sums" | sed -n 's/^[0-9a-f]\{64\}  \(molink_sim-[^/ ]*\.whl\)$/\1/p')
    for name in "$wheel" "$simulator" install.sh; do
        fetch "$name" "$TMPDIR" || fail "$name cannot be fetched from $release; nothing was changed."
        printf '%s\n' "$sums" | "$python" -c 'import hashlib, pathlib, sys
path = pathlib.Path(sys.argv[1])
line = f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"
sys.exit(line not in sys.stdin.read().splitlines())' "$TMPDIR/$name" ||
            fail "$name from $release is not what was signed; nothing was changed."
    done
    source=$TMPDIR/$wheel
    simulator=$TMPDIR/$simulator
}

# What molink upgrade needs: where releases come from, what is installed, and the one before. What
# came from a checkout or a wheel is no release, and takes the place of one.
remember_release() {
    if [ -z "$release" ]; then
        rm -f "$root/release" "$root/release-key" "$root/install.sh"
        rm -rf "$root/current" "$root/before"
        return
    fi
    mkdir "$TMPDIR/kept"
    mv "$source" "$simulator" "$TMPDIR/kept"
    cp "$TMPDIR/install.sh" "$TMPDIR/kept"
    printf '%s\n' "$version" >"$TMPDIR/kept/version"
    if [ -d "$root/current" ] && [ "$(cat "$root/current/version")" != "$version" ]; then
        rm -rf "$root/before"
        mv "$root/current" "$root/before"
    fi
    rm -rf "$root/current"
    mv "$TMPDIR/kept" "$root/current"
    printf '%s\n' "$RELEASE_KEY" >"$root/release-key"
    # In the place of the script that may be running, never into it: sh reads on where it was.
    mv "$TMPDIR/install.sh" "$root/install.sh"
    printf '%s\n%s\n' "$release" "$version" >"$root/release"
}

# What was kept of the release before, in the place of what was fetched: it was checked then.
take_kept_release() {
    cp "$kept"/molink-*.whl "$kept"/molink_sim-*.whl "$kept/install.sh" "$TMPDIR"
    release=$(sed -n 1p "$root/release")
    version=$(cat "$kept/version")
    RELEASE_KEY=$(cat "$root/release-key")
    source=$(echo "$TMPDIR"/molink-*.whl)
    simulator=$(echo "$TMPDIR"/molink_sim-*.whl)
}

# Whether the release is newer than what is installed; older ones are refused.
is_newer() {
    installed=$(sed -n 2p "$root/release")
    if [ "$installed" = "$version" ] && [ ! -f "$root/unfinished" ]; then
        ok "$version is installed already, the newest at $release"
        return 1
    fi
    # 0.2.0rc1 goes before 0.2.0, and 0.1.0+9.g1a2b, nine commits behind a tag, after 0.1.0+3.g3c4d.
    "$python" -c 'import re, sys
def order(version):
    public, _, local = version.partition("+")
    release, rest = re.match(r"([0-9.]*[0-9])(.*)", public).groups()
    count = re.match(r"(\d+)\.", local)
    numbers = [int(one) for one in release.split(".")]
    before = [int(one) for one in re.findall(r"\d+", rest)]
    return numbers, not rest, before, int(count[1]) if count else 0
old, new = map(order, sys.argv[1:])
sys.exit(new < old)' "$installed" "$version" ||
        fail "the release at $release is $version, older than $installed; nothing was changed."
}

# Sets simulator to what is installed for --coordinator: a part of the checkout, or a wheel.
check_simulator() {
    simulator=$source/sim
    if [ -f "$source" ]; then
        name=$(basename "$source")
        simulator=$(dirname "$source")/molink_sim-${name#molink-}
    fi
    if [ -e "$simulator" ]; then
        ok "and the simulator from $simulator"
    else
        missing "the simulator at $simulator, which --coordinator asks for: put it there"
    fi
}

is_checkout() {
    [ -f "$1/pyproject.toml" ] && grep -q '^name = "molink"' "$1/pyproject.toml"
}

check_link() {
    if [ -e "$link" ] && ! is_our_link && [ ! -f "$root/with-pipx" ]; then
        missing "the name $link, which something else has: move that away"
    fi
    if [ "$(id -u)" = 0 ]; then
        note "this is root: MoLink will be installed for root alone; better run this as the user" \
            "who lends the PC"
    fi
}

is_our_link() {
    [ -L "$link" ] && [ "$(readlink "$link")" = "$venv/bin/molink" ]
}

check_helpful() {
    has cc || has gcc || note "no C compiler: CPUs with AVX512-BF16 compute faster with one"
    case $torch_choice in
        cuda*) has_compiler_for_kernels || note "no C compiler with Python's headers: kernels for" \
            "the GPU are compiled with them, without it computes slower ($(how_to_get_compiler))" ;;
    esac
}

# What Triton looks for when a stage starts.
has_compiler_for_kernels() {
    { has gcc || has clang; } && [ -n "$python" ] && "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))'
}

how_to_get_compiler() {
    case $(package_manager) in
        apt-get) echo "sudo apt install gcc python3-dev" ;;
        dnf) echo "sudo dnf install gcc python3-devel" ;;
        pacman) echo "sudo pacman -S gcc" ;;
        *) echo "install them with your system's package manager" ;;
    esac
}

check_all() {
    missing_count=0
    check_wsl
    check_python
    check_pipx
    check_gpu
    choose_torch
    check_disk
    check_source
    check_link
    check_helpful
    if [ "$missing_count" -gt 0 ]; then
        fail "$missing_count missing, see above; nothing was changed. Run this again afterwards."
    fi
}

# --- doing it ----------------------------------------------------------------------------------

install_all() {
    mkdir -p "$root" "$(dirname "$link")"
    trap remove_temporary EXIT
    trap 'exit 130' INT TERM
    # /tmp often lies in memory and cannot hold what pip unpacks.
    TMPDIR=$(mktemp -d "$root/tmp.XXXXXX")
    export TMPDIR
    if [ "$going_back" = yes ]; then
        take_kept_release
    elif [ -n "$release" ]; then
        fetch_release
    fi
    printf '%s\n' "$leaves_kept" >"$root/unfinished"
    trap 'say_unfinished; remove_temporary' EXIT
    if [ "$with_pipx" = yes ]; then
        install_with_pipx
    else
        install_with_venv
    fi
    install_completion
    remember_release
    rm -f "$root/unfinished"
    trap - EXIT
    remove_temporary
    [ "$with_coordinator" = no ] || : >"$root/with-coordinator"
    remember_words
    say_next
}

# What an upgrade chooses again, unless something else is said then.
remember_words() {
    if [ "$torch_wanted$torch_index_wanted$python_wanted" = auto ]; then
        rm -f "$root/wanted"
    else
        printf '%s\n' "$torch_wanted" "$torch_index_wanted" "$python_wanted" >"$root/wanted"
    fi
}

say_unfinished() {
    how="Run it again to go on."
    if [ -f "$root/install.sh" ]; then
        how="To go on: sh $root/install.sh --upgrade; to have the version of before: the same, --back."
        [ "$going_back" = no ] ||
            how="To go on: sh $root/install.sh --back; to have the newest version: the same, --upgrade."
    fi
    echo "install.sh: the installation did not finish, the reason is above. $how" >&2
}

remove_temporary() {
    rm -rf "$root"/tmp.??????
    [ -z "${listed:-}" ] || rm -rf "$listed"
}

install_with_venv() {
    # An environment whose Python has gone (a system upgrade) or was left half made is made anew.
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --clear "$venv"
    fi
    lock requirements.lock
    lock torch.lock
    echo
    echo "1 of 3: libraries, each with the checksum that this version of MoLink was tried with"
    pip install --require-hashes --requirement "$TMPDIR/requirements.lock"
    if [ "$with_coordinator" = yes ]; then
        lock extras.lock
        pip install --require-hashes --no-deps --requirement "$TMPDIR/extras.lock"
    fi
    echo
    echo "2 of 3: torch, the biggest part"
    install_torch
    echo
    echo "3 of 3: MoLink"
    # The same version again is no upgrade to pip; what builds a checkout came with the libraries.
    set -- "$source"
    [ "$with_coordinator" = no ] || set -- "$@" "$simulator"
    pip install --force-reinstall --no-deps --no-build-isolation "$@"
    ln -sfn "$venv/bin/molink" "$link"
    "$link" --version
}

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"
}

# The list of pinned packages that belongs to what is installed.
lock() {
    if [ -d "$source" ]; then
        cat "$source/molink/$1"
    else
        "$python" -c "import sys, zipfile
print(zipfile.ZipFile(sys.argv[1]).read('molink/$1').decode())" "$source"
    fi >"$TMPDIR/$1"
}

# PyPI's build by its checksums. An index of torch's own has others: there only the version is
# pinned, and pip compares with the checksums that the index itself names.
install_torch() {
    torch=$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' "$TMPDIR/torch.lock")
    if [ -f "$venv/torch-index" ]; then
        [ "$(cat "$venv/torch-index")" != "$torch $torch_index" ] || return 0
        pip uninstall --yes torch
    fi
    if [ -n "$torch_index" ]; then
        pip install --index-url "$torch_index" "$torch"
    else
        pip install --require-hashes --no-deps --requirement "$TMPDIR/torch.lock"
    fi
    printf '%s' "$torch $torch_index" >"$venv/torch-index"
}

install_with_pipx() {
    # pipx takes no checksums, only versions.
    for name in requirements.lock extras.lock torch.lock; do
        lock "$name"
        sed -n 's/^\([A-Za-z0-9._-]*==[^ ]*\)\( ;.*\)\{0,1\} \\$/\1\2/p' "$TMPDIR/$name"
    done >"$TMPDIR/constraints.txt"
    pins="--constraint $TMPDIR/constraints.txt"
    set -- --pip-args="$pins${torch_index:+ --extra-index-url $torch_index}"
    if [ "$with_coordinator" = yes ]; then
        pipx install --force --python "$python" "$@" "${source}[dashboard,import]"
        pipx inject --force "$@" molink "$simulator"
    else
        pipx install --force --python "$python" "$@" "$source"
    fi
    : >"$root/with-pipx"
}

# Words of the command line, completed by the Tab key in new shells: bash and fish read such files by
# themselves. A system without them is no trouble.
install_completion() {
    has molink && command=molink || command=$link
    for shell in bash fish; do
        has "$shell" || continue
        if _MOLINK_COMPLETE=${shell}_source "$command" >"$TMPDIR/completion" 2>/dev/null &&
            [ -s "$TMPDIR/completion" ]; then
            file=$(completion_file "$shell")
            mkdir -p "$(dirname "$file")"
            mv "$TMPDIR/completion" "$file"
        fi
    done
}

completion_file() {
    case $1 in
        bash) echo "$data/bash-completion/completions/molink" ;;
        fish) echo "${XDG_CONFIG_HOME:-$HOME/.config}/fish/completions/molink.fish" ;;
    esac
}

say_next() {
    command=molink
    has molink || command=$link
    echo
    echo "MoLink is installed. To lend this PC:    $command agent join INVITE"
    echo "To serve a model to which others join:  $command up MODEL --port 8000"
    if [ "$command" != molink ]; then
        echo "To call it just \"molink\", log in again or run: export PATH=\"\$HOME/.local/bin:\$PATH\""
    fi
}

# --- undoing it --------------------------------------------------------------------------------

uninstall_all() {
    remove_services
    if [ -f "$root/with-pipx" ] && has pipx; then
        pipx uninstall molink || note "pipx did not know it any more"
    fi
    if is_our_link; then
        rm -f "$link"
    fi
    rm -f "$(completion_file bash)" "$(completion_file fish)"
    rm -f "$root/release" "$root/release-key" "$root/install.sh" "$root/unfinished" \
        "$root/wanted"
    rm -rf "$root/current" "$root/before" "$venv" "$root/with-pipx" "$root/with-coordinator"
    remove_temporary
    if [ -d "$root" ] && ! rmdir "$root" 2>/dev/null; then
        note "kept $root: the keys, invites and members of a cluster that was run from here;" \
            "to remove it too: rm -r '$root'"
    fi
    remove_or_keep "$data/molink-agent" "${XDG_CACHE_HOME:-$HOME/.cache}/molink" \
        "${XDG_STATE_HOME:-$HOME/.local/state}/molink"
    echo "MoLink is removed."
}

# Only units that carry the line which `molink service install` or that of the agent writes, and
# what `molink agent tray --at-login` makes.
remove_services() {
    config=${XDG_CONFIG_HOME:-$HOME/.config}
    rm -f "$config/autostart/molink-agent-tray.desktop"
    for unit in "$config"/systemd/user/molink-agent*.service \
        "$config"/systemd/user/molink-coordinator*.service; do
        if [ -f "$unit" ] &&
            grep -q '^# Made by molink \(agent \)\{0,1\}service install' "$unit"; then
            systemctl --user disable --now "$(basename "$unit")" 2>/dev/null ||
                note "systemd did not answer; the service ends when you log out"
            rm -f "$unit"
            systemctl --user daemon-reload 2>/dev/null || true
        fi
    done
}

remove_or_keep() {
    for kept in "$@"; do
        if [ -e "$kept" ] && [ "$purge" = yes ]; then
            rm -rf "$kept"
        elif [ -e "$kept" ]; then
            note "kept $kept; to remove it too: rm -r '$kept'"
        fi
    done
}

# --- the command line --------------------------------------------------------------------------

action=install purge=no with_pipx=no with_coordinator=no python_wanted='' source_wanted=''
torch_wanted=auto torch_index_wanted='' release_key_wanted='' upgrading=no going_back=no

while [ $# -gt 0 ]; do
    case $1 in
        --from | --python | --torch | --torch-index | --release-key)
            [ $# -ge 2 ] || fail "$1 needs a value (install.sh --help shows which)."
            ;;
    esac
    case $1 in
        --check) action=check ;;
        --upgrade) upgrading=yes ;;
        --back) going_back=yes ;;
        --release-key) release_key_wanted=$2 && shift ;;
        --uninstall) action=uninstall ;;
        --purge) purge=yes ;;
        --pipx) with_pipx=yes ;;
        --coordinator) with_coordinator=yes ;;
        --from) source_wanted=$2 && shift ;;
        --python) python_wanted=$2 && shift ;;
        --torch) torch_wanted=$2 && shift ;;
        --torch-index) torch_index_wanted=$2 && shift ;;
        -h | --help) usage && exit 0 ;;
        *) fail "there is no option $1 (install.sh --help shows what there is)." ;;
    esac
    shift
done
case $torch_wanted in
    auto | cpu | cuda) ;;
    *) fail "--torch takes auto, cpu or cuda, got $torch_wanted." ;;
esac
[ -n "${HOME:-}" ] || fail "HOME is not set: run this as the user who lends the PC."
if [ "$purge" = yes ] && [ "$action" != uninstall ]; then
    fail "--purge goes with --uninstall."
fi

data=${XDG_DATA_HOME:-$HOME/.local/share}
root=$data/molink
venv=$root/venv
link=$HOME/.local/bin/molink
[ ! -f "$root/with-coordinator" ] || with_coordinator=yes
if [ "$upgrading$going_back" != nono ] && [ -f "$root/wanted" ]; then
    [ "$torch_wanted" != auto ] || torch_wanted=$(sed -n 1p "$root/wanted")
    torch_index_wanted=${torch_index_wanted:-$(sed -n 2p "$root/wanted")}
    python_wanted=${python_wanted:-$(sed -n 3p "$root/wanted")}
fi

if [ "$upgrading" = yes ]; then
    [ -f "$root/release" ] || fail "no release is installed: --from URL takes one first."
    source_wanted=$(sed -n 1p "$root/release")
    release_key_wanted=$root/release-key
    [ ! -f "$root/with-pipx" ] || with_pipx=yes
fi

# Whether the release that is remembered is being left for the one before it.
leaves_kept=no

if [ "$going_back" = yes ]; then
    [ "$action$upgrading" = installno ] || fail "--back goes alone."
    # An upgrade that did not finish is not remembered: what ran before is the one that is. A way
    # back that did not finish is gone on with.
    kept=$root/before leaves_kept=yes
    if [ -f "$root/unfinished" ] && [ "$(cat "$root/unfinished")" != yes ]; then
        kept=$root/current leaves_kept=no
    fi
    [ -d "$kept" ] || fail "no release is kept from before the last upgrade."
    source_wanted=$(echo "$kept"/molink-*.whl)
    [ ! -f "$root/with-pipx" ] || with_pipx=yes
fi

case $action in
    check)
        check_all
        [ "$upgrading" = no ] || ! is_newer || note "$version can be installed: molink upgrade"
        ok "nothing is missing"
        ;;
    install)
        check_all
        [ "$upgrading" = no ] || is_newer || exit 0
        install_all
        ;;
    uninstall) uninstall_all ;;
esac
exit
