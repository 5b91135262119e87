# What a build and its tests need from the machine; sourced by ops/up and ops/test.
# shellcheck shell=bash

# Exit code for something missing that has to be installed first (EX_UNAVAILABLE).
readonly exit_unavailable=69

# A fresh rustup is on nobody's PATH until the next login.
[[ -d ${CARGO_HOME:-$HOME/.cargo}/bin ]] && PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

# require_tools [python]: ends the script, naming everything that is missing and the command that installs
# it. With `python`, what fetches packages is needed too.
require_tools() {
    local -a packages=() missing=()
    if ! command -v cargo >/dev/null; then
        missing+=("cargo: install Rust with rustup")
    fi
    if ! command -v cc >/dev/null; then
        missing+=("cc: a C compiler, which Rust links with")
        packages+=(build-essential)
    fi
    if [[ ${1:-} != python ]]; then
        :
    elif ! command -v python3 >/dev/null; then
        missing+=("python3: fetches the model")
        packages+=(python3 python3-venv)
    elif ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        missing+=("python3-venv: pip is used inside a virtual environment only")
        packages+=(python3-venv)
    fi
    ((${#missing[@]})) || return 0
    printf 'ops/%s: missing on this machine:\n' "${0##*/}" >&2
    printf '  %s\n' "${missing[@]}" >&2
    if ((${#packages[@]})); then
        printf 'On Debian or Ubuntu: sudo apt install %s\n' "${packages[*]}" >&2
    fi
    exit "$exit_unavailable"
}
