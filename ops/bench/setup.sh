# What ops/bench/run and ops/bench/peers share; sourced by both.
# shellcheck shell=bash

# shellcheck source=ops/prerequisites.sh
source "$root/ops/prerequisites.sh"

# read_arguments ARGUMENT...: sets models (files), out (a directory that exists) and options (for
# `vitriol-engine bench`). Without --quick and without options of the same kind: everything.
read_arguments() {
    local -a names=()
    local quick=
    options=() models=() out=$root/target/bench
    while (($#)); do
        case $1 in
            -h | --help) usage; exit 0 ;;
            --quick) quick=yes ;;
            --model | --out)
                (($# > 1)) || { echo "${0##*/}: $1 needs a value" >&2; exit 64; }
                if [[ $1 == --out ]]; then out=$2; else names+=("$2"); fi
                shift
                ;;
            *) options+=("$1") ;;
        esac
        shift
    done
    ((${#names[@]})) || names=(smollm2 gemma)
    if [[ $quick ]]; then
        default_option --rows pp512,tg0,tg2048
        default_option --repeat 3
    else
        local cores
        cores=$(nproc)
        default_option --threads "1$( ((cores == 1)) || echo ",$cores")"
        default_option --kv-keys f16,q8_0
    fi
    mkdir -p "$out"
    wanted_models=("${names[@]}")
}

# default_option NAME VALUE: adds an option that was not given.
default_option() {
    local option
    for option in "${options[@]}"; do
        case $option in "$1" | "$1="*) return ;; esac
        # Rows by name are not rows by lists.
        if [[ $1 == --rows ]]; then
            case $option in --prompt* | --depth* | --batch*) return ;; esac
        fi
    done
    options+=("$1" "$2")
}

# build: the binaries, and the models that were asked for, in models.
build() {
    require_tools python
    local target=${CARGO_TARGET_DIR:-$root/target} name
    (cd "$root" && cargo build --release --workspace --bins)
    engine=$target/release/vitriol-engine
    for name in "${wanted_models[@]}"; do
        case $name in
            smollm2) model "$target" smollm2-135m-instruct SmolLM2-135M-Instruct.Q4_1.gguf ;;
            gemma) model "$target" gemma-3-270m gemma-3-270m-q4_k_m.gguf ;;
            *) models+=("$name") ;;
        esac
    done
}

# model TARGET NAME FILE: fetches a known model unless it is there.
model() {
    local file=${XDG_CACHE_HOME:-$HOME/.cache}/vitriol/models/$3
    [[ -e $file ]] || "$1/release/vitriol" model fetch "$2" >&2
    models+=("$file")
}

# quietly COMMAND...: in a scheduling group of its own, before all others where this user may say so. In
# the group of a terminal a benchmark shares its turns with whatever else that terminal runs.
quietly() {
    local pid status=0
    # shellcheck disable=SC2016
    setsid sh -c '{ echo -20 >/proc/self/autogroup; } 2>/dev/null; exec "$@"' sh "$@" &
    pid=$!
    # All of its group: a worker would first end what it computes.
    trap 'kill -- "-$pid" 2>/dev/null' INT TERM
    wait "$pid" || status=$?
    trap - INT TERM
    return "$status"
}
