#!/usr/bin/env bash
# Download and prepare the corpus as corpus.toml says; --help lists what can be set.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec bash "$here/../translation/prepare.sh" "$here" "$@"
