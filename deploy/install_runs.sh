#!/bin/sh
# Installs what MoLink runs with, and nothing that tests, measures or writes documents, into a virtual
# environment that is there. For `make demo`, whose second step it is.
#
# By uv, which fetches and unpacks several packages at a time and compiles nothing beforehand; pip
# takes its place where uv cannot be had. Without an NVIDIA driver torch comes from the index that has
# no CUDA in it, which is a tenth as large; where that one does not answer, from the usual one.
#
#   sh deploy/install_runs.sh PYTHON_OF_THE_ENVIRONMENT [TORCH_INDEX]
set -eu

python=$1
torch_index=${2:-}
TORCH='torch==2.13.0'
INDEX_CPU=https://download.pytorch.org/whl/cpu
UV='uv>=0.9'

# Certificates of the system, as pip takes them where it is told to: those of a company's proxy.
export UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1

has() { command -v "$1" >/dev/null 2>&1; }

pip() {
    "$python" -m pip --quiet --disable-pip-version-check --no-input "$@"
}

# Prints the path of uv; fails where there is none.
find_uv() {
    if has uv; then
        command -v uv
        return
    fi
    pip install "$UV" >/dev/null 2>&1 && echo "$(dirname "$python")/uv"
}

# Packages, by whichever of the two is there.
install() {
    if [ -n "$uv" ]; then
        "$uv" pip install --quiet --python "$python" --constraint constraints.txt "$@"
    else
        pip install --constraint constraints.txt "$@"
    fi
}

needs_no_cuda() {
    [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] && ! has nvidia-smi &&
        [ ! -e /usr/lib/wsl/lib/nvidia-smi ]
}

uv=$(find_uv) || uv=
if [ -n "$torch_index" ]; then
    install --no-deps --index-url "$torch_index" "$TORCH"
elif needs_no_cuda; then
    UV_HTTP_RETRIES=0 PIP_RETRIES=0 install --no-deps --index-url "$INDEX_CPU" "$TORCH" 2>/dev/null ||
        echo "$INDEX_CPU does not answer: torch comes with CUDA, which takes minutes longer."
fi
install "$TORCH" --editable .
