#!/usr/bin/env bash
# Installs one lock into a plain venv: requirements/install.sh cpu|cuda VENV
# Set by the Makefile: PYTHON (starts the venv), TORCH_INDEX (fallback for the CPU build of torch), WHEELS (cache of built wheels).
set -euo pipefail
cd "$(dirname "$0")/.."
lock=requirements/$1.txt venv=$2
python=${PYTHON:-python3}
wheels=${WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/speculation-notebooks/wheels}
export PIP_DISABLE_PIP_VERSION_CHECK=1

fail() { echo "set-up: $*" >&2; exit 1; }
pin() { grep -E "^$1==" "$lock"; }

# Several lists at once: a lock leaves pip nothing to resolve, and most of its time is spent waiting for the network.
pips() {
  local file pid pids=() status=0
  [[ $1 == */part.* ]] || { "$venv/bin/python" -m pip install --no-deps "$@"; return; }
  for file in "$@"; do "$venv/bin/python" -m pip install --no-deps -r "$file" & pids+=($!); done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  return $status
}

# One line that moves on a terminal, a line every 40 packages elsewhere; what pip says goes to the log, shown if it fails.
pip_install() {
  local total=$1; shift
  pips "$@" 2>&1 | tee -a "$log" | awk -v total="$total" -v tty="$([ -t 1 ] && echo 1 || echo 0)" '
    /^(Collecting|Requirement already|Processing) / || /^Requirement already/ {
      n++
      if (tty) printf "\r\033[K  %d/%d %s", n, total, ($1 == "Requirement" ? $4 : $2)
      else if (n % 40 == 0 || (n == total && n > 1)) printf "  %d/%d\n", n, total
      fflush()
    }
    /^Installing collected packages/ && !said++ { if (tty) printf "\r\033[K"; print "  installing what was fetched"; fflush() }
    END { if (tty) printf "\r\033[K" }'
}
show() { grep -v '^WARNING: Location' "$log" | tail -n 15 >&2; fail "$1 (whole log: $log)"; }

[ -f "$lock" ] || fail "no lock $lock, allowed: cpu, cuda"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "needs Python 3.11 or newer, found $("$python" --version 2>&1 || echo none); choose one with: make PYTHON=python3.11"
if [ ! -x "$venv/bin/python" ]; then
  "$python" -m venv "$venv" >/dev/null || fail "$python cannot make a venv (on Debian: apt install python3-venv)"
fi
log=$venv/setup.log; : > "$log"
tag=$("$venv/bin/python" -c 'import sys; print(f"cp{sys.version_info.major}{sys.version_info.minor}")')
arctic=$(pin arctic-inference); version=${arctic#*==}
built() { ls "$wheels"/arctic_inference-"$version"-"$tag"-*_"$(uname -m)".whl 2>/dev/null | head -n 1; }
if [ -z "$(built)" ] && ! command -v "${CXX:-g++}" >/dev/null && ! command -v c++ >/dev/null; then
  fail "needs a C++ compiler to build arctic-inference (on Debian: apt install g++)"
fi

echo "pip and torch"
pip_install 1 "$(pin pip)" || show "pip could not be upgraded"
torch=$(pin torch)
# pip may be told of places that hold a build like 2.13.0+cpu, which satisfies ==2.13.0 but not ===2.13.0
[ "$1" = cpu ] || torch=${torch/==/===}
if ! pip_install 1 "$torch"; then
  # Only the CPU build is missing from PyPI: it comes from the PyTorch project itself.
  [ "$1" = cpu ] && [ -n "${TORCH_INDEX:-}" ] || show "$torch could not be installed"
  pip_install 1 --index-url "$TORCH_INDEX" "$torch" || show "$torch was found neither where pip looks nor at $TORCH_INDEX"
fi

rest=$(mktemp -d); trap 'rm -rf "$rest"' EXIT
grep -v -E '^(#|arctic-inference==|pip==|torch==)' "$lock" > "$rest/all"
count=$(wc -l < "$rest/all")
echo "$count packages of $lock"
split -n r/4 "$rest/all" "$rest/part."
pip_install "$count" "$rest"/part.* || show "a package of $lock could not be installed"

if [ -z "$(built)" ]; then
  echo "$arctic: built once, about 80 s, and kept in $wheels"
  mkdir -p "$wheels"
  # Its set-up imports torch, so it sees this environment instead of one of its own.
  PATH="$(cd "$venv/bin" && pwd):$PATH" "$venv/bin/python" -m pip wheel --no-deps --no-build-isolation "$arctic" -w "$wheels" >> "$log" 2>&1 &
  build=$!; seconds=0
  while kill -0 "$build" 2>/dev/null; do sleep 1; seconds=$((seconds + 1)); [ $((seconds % 15)) -ne 0 ] || echo "  building, $seconds s"; done
  wait "$build" || show "$arctic did not build"
fi
pip_install 1 --no-index "$(built)" || show "$arctic could not be installed"
pip_install 1 --no-build-isolation --no-index -e . || show "the package lib could not be installed"
"$venv/bin/python" -c 'import torch, lib; from arctic_inference.suffix_decoding import SuffixDecodingCache' ||
  fail "the new environment does not import"
[ "$1" = cpu ] || "$venv/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' ||
  fail "torch in $venv is no CUDA build"
echo "$venv is ready"
