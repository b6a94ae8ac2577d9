#!/usr/bin/env bash
# Train a model with the settings of training.sh; ../translation/train.sh lists what can be set.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec bash "$here/../translation/train.sh" "$here" "$@"
