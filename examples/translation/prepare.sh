#!/usr/bin/env bash
# Prepare the corpus of an example; run through its prepare.sh, which has --help.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec python3 "$shared/prepare.py" "$@"
