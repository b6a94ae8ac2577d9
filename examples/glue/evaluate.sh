#!/usr/bin/env bash
# The score of a fine-tuned model, by stock fairseq-validate.
#
#   TASK=mnli bash evaluate.sh
# Words after it go to fairseq-validate. Settings: those of tasks.sh, and
#   SUBSET=test              or valid, train
#   CHECKPOINT=FILE          default: the best of the training
# shellcheck source-path=SCRIPTDIR source=tasks.sh
source "$(dirname "${BASH_SOURCE[0]}")/tasks.sh"
SUBSET=${SUBSET:-test} CHECKPOINT=${CHECKPOINT:-$run/checkpoint_best.pt}
[ -f "$CHECKPOINT" ] || refuse "no checkpoint $CHECKPOINT: run train.sh first, or name one in CHECKPOINT"
read_layout
result=$folder/$SUBSET.$(basename "$CHECKPOINT" .pt)
fairseq-validate "$data" "${task[@]}" "${layout[@]}" --path "$CHECKPOINT" --valid-subset "$SUBSET" \
  --batch-size 32 --required-batch-size-multiple 1 --log-format simple "${device[@]}" "$@" \
  >"$result.tmp" 2>&1 || refuse "fairseq-validate failed: $result.tmp says why"
mv "$result.tmp" "$result.log"
grep -o "valid on.*\|$SUBSET | .*" "$result.log" | tail -n 1
