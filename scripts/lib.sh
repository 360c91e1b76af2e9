# Shared by the scripts: where things are, how to speak, how to compare versions.
# shellcheck shell=bash
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# We look for executables where cargo puts them for this machine.
unset CARGO_BUILD_TARGET

# Queries are checked against .sqlx, whatever database variables the shell has.
export SQLX_OFFLINE=true

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
fail() {
    printf '\033[1;31merror:\033[0m %s\n' "$*" >&2
    exit 1
}

# Cargo's progress is for people.
# shellcheck disable=SC2034 # for the scripts that source this
if [ -t 2 ]; then quiet=(); else quiet=(--quiet); fi

# at_least 15 15.18: whether the second version is not below the first.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# The first thing in its input that looks like a version.
version_in() { grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1 || true; }

# Where cargo puts what it builds; never assume ./target.
target_dir() {
    cargo metadata --format-version 1 --no-deps --offline 2>/dev/null |
        grep -oE '"target_directory":"[^"]*"' | cut -d '"' -f 4
}

# Tools that cargo builds are kept per user, so that a fresh clone finds them again.
tools_root="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/tasuki/cargo"
export PATH="$tools_root/bin:$PATH"

# cargo_tool cargo-deny 0.18: gets a cargo tool of at least this version.
cargo_tool() {
    local tool=$1 wanted=$2 found
    found=$(cargo "${tool#cargo-}" --version 2>/dev/null | version_in || true)
    if [ -n "$found" ] && at_least "$wanted" "$found"; then return; fi
    say "building $tool, once per machine"
    cargo install --quiet --locked --root "$tools_root" "$tool"
}
