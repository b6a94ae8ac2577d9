#!/usr/bin/env bash
# Translate with a trained model and score; ../translation/evaluate.sh lists what can be set.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec bash "$here/../translation/evaluate.sh" "$here" "$@"
