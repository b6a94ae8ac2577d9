#!/usr/bin/env bash
# Download and prepare the corpus as corpus.toml says; --help lists what can be set.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../translation/environment.sh
source "$here/../translation/environment.sh"
PYTHONPATH=$shared${PYTHONPATH:+:$PYTHONPATH} exec python3 "$here/texts.py" "$here" "$@"
