# shellcheck shell=bash disable=SC2034
# Sourced by prepare.sh, and by train.sh and evaluate.sh through common.sh.

command=$(basename "$0")
shared=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$shared/../.." && pwd)

refuse() { echo "$command: $*" >&2; exit 2; }

# An environment that is already active comes first, then the one `make` builds.
venv=$root/.venv/bin
if ! command -v fairseq-train >/dev/null && [ -x "$venv/fairseq-train" ]; then PATH=$venv:$PATH; fi
command -v fairseq-train >/dev/null \
  || refuse "fairseq-train not found: activate an environment that has it"
export PYTHONUNBUFFERED=1
