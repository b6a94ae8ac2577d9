#!/usr/bin/env bash
# Perplexity of a set under a trained model, every token with the context that CONTEXT grants it.
#
# Words after it go to fairseq-eval-lm, the last one wins.
# Settings, all optional; MODEL, SIZE, RUN, WORK as in train.sh:
#   SUBSET=test        or valid
#   CONTEXT=N          tokens before those that are scored; default: 2560, or 192 of a small model
#   CHECKPOINT=FILE    this one; default: the best of RUN
#   GPUS=0             on the CPU
#   FORCE=1            score again what an older checkpoint has scored
set -euo pipefail

example=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../translation/common.sh
source "$example/../translation/common.sh"
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}  # the plugin, installed or not

SUBSET=${SUBSET:-test} CONTEXT=${CONTEXT:-$context}
one_of SUBSET "$SUBSET" test valid
number CONTEXT "$CONTEXT" 0
[ "$CONTEXT" -lt "$tokens_per_sample" ] \
  || refuse "CONTEXT ($CONTEXT) must be below $tokens_per_sample, the tokens of a sample"
named=${CHECKPOINT:-}
CHECKPOINT=${named:-$run/checkpoints/checkpoint_best.pt}
[ -f "$CHECKPOINT" ] || [ -z "$named" ] || refuse "CHECKPOINT ($CHECKPOINT) is not there"
[ -f "$CHECKPOINT" ] \
  || refuse "no checkpoint of RUN ($RUN) in $run/checkpoints: run train.sh first"
result=$run/$SUBSET.$(basename "$CHECKPOINT" .pt).context$CONTEXT
evaluated=$result/eval-lm.txt

evaluate=(fairseq-eval-lm "$WORK/data-bin" --user-dir "$plugin" --path "$CHECKPOINT"
  --gen-subset "$SUBSET" --sample-break-mode none --tokens-per-sample "$tokens_per_sample"
  --context-window "$CONTEXT" --max-tokens "$tokens_per_sample" --log-format simple)
[ ! -f "$WORK/bpe.codes" ] || evaluate+=(--remove-bpe)  # perplexity of words, not of pieces
if [ "$GPUS" -eq 0 ]; then evaluate+=(--cpu); fi
evaluate+=("$@")

# What another checkpoint, or another command, has given is not replaced unasked.
if [ -f "$evaluated" ] && [ "$FORCE" = 0 ]; then
  [ "$evaluated" -nt "$CHECKPOINT" ] \
    || refuse "$result was made with an older checkpoint: FORCE=1 replaces it; rename it to keep it"
  [ "${evaluate[*]@Q}" = "$(cat "$result/eval-lm.command")" ] \
    || refuse "$result was made by another command (eval-lm.command): FORCE=1 replaces it; rename it to keep it"
else
  mkdir -p "$result"
  announce "fairseq-eval-lm: the $SUBSET set with $CHECKPOINT"
  log=$result/eval-lm.tmp
  "${evaluate[@]}" >"$log" 2>&1
  printf '%s\n' "${evaluate[*]@Q}" >"$result/eval-lm.command"
  mv "$log" "$evaluated"
fi
stage=''  # perplexity.py says itself what is wrong
python3 "$example/perplexity.py" "$result"
