#!/usr/bin/env bash
# Translate a set with a trained model of an example, and score it twice.
#
# Run through the evaluate.sh of an example. Words after it go to fairseq-generate, the last one wins.
# Settings, all optional; MODEL, SIZE, RUN, WORK as in train.sh:
#   SUBSET=test        or valid
#   AVERAGE=N          mean of the checkpoints of the last N epochs; 0: the best checkpoint
#   CHECKPOINT=FILE    this one
#   GPUS=0             on the CPU
#   FORCE=1            translate again what an older checkpoint has translated
set -euo pipefail

example=$1
shift
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}  # the plugin, installed or not

SUBSET=${SUBSET:-test} AVERAGE=${AVERAGE:-$average} CHECKPOINT=${CHECKPOINT:-}
one_of SUBSET "$SUBSET" test valid
number AVERAGE "$AVERAGE" 0
newest=$run/checkpoints/checkpoint_last.pt averaging=0
if [ -n "$CHECKPOINT" ]; then
  [ -f "$CHECKPOINT" ] || refuse "CHECKPOINT ($CHECKPOINT) is not there"
  result=$run/$SUBSET.$(basename "$CHECKPOINT" .pt)
elif [ ! -f "$newest" ]; then
  refuse "no checkpoint of RUN ($RUN) in $run/checkpoints: run train.sh first"
elif [ "$AVERAGE" -gt 0 ]; then
  CHECKPOINT=$run/average$AVERAGE.pt averaging=1
  result=$run/$SUBSET.average$AVERAGE
else
  CHECKPOINT=$run/checkpoints/checkpoint_best.pt
  result=$run/$SUBSET.best
fi
generated=$result/generate.txt

translate=(fairseq-generate "$WORK/data-bin" --user-dir "$plugin" --path "$CHECKPOINT"
  --gen-subset "$SUBSET" "${search[@]}" --batch-size 128 --remove-bpe --log-format simple)
if [ "$GPUS" -eq 0 ]; then translate+=(--cpu); fi
translate+=("$@")

# What another checkpoint, or another command, has translated is not replaced unasked.
made_of=$CHECKPOINT
[ "$averaging" = 0 ] || made_of=$newest
if [ -f "$generated" ] && [ "$FORCE" = 0 ]; then
  [ "$generated" -nt "$made_of" ] \
    || refuse "$result was made with an older checkpoint: FORCE=1 replaces it; rename it to keep it"
  [ "${translate[*]@Q}" = "$(cat "$result/generate.command")" ] \
    || refuse "$result was made by another command (generate.command): FORCE=1 replaces it; rename it to keep it"
fi

mkdir -p "$result"
if [ ! -f "$generated" ] || [ "$FORCE" = 1 ]; then
  if [ "$averaging" = 1 ] && ! [ "$CHECKPOINT" -nt "$newest" ]; then
    announce "averaging the checkpoints of the last $AVERAGE epochs"
    log=$result/average.log
    python3 -m lite_transformer_plugin.cli.average_checkpoints --force \
      --inputs "$run/checkpoints" --num-epoch-checkpoints "$AVERAGE" --output "$CHECKPOINT" \
      >"$log" 2>&1
  fi
  announce "fairseq-generate: translating the $SUBSET set with $CHECKPOINT"
  log=$result/generate.tmp
  "${translate[@]}" >"$log" 2>&1
  printf '%s\n' "${translate[*]@Q}" >"$result/generate.command"
  mv "$log" "$generated"
fi

announce "scoring"
stage=''  # score.py says itself what is wrong
scored=(--target "${spoken:-$target}" --original "$WORK/raw/$SUBSET.$target")
if [ "${metric:-bleu}" = rouge ]; then scored+=(--rouge --lead "$lead"); fi
if [ "$lowercased" = 1 ]; then scored+=(--lowercase); fi
if [ "$compounds" = 1 ]; then scored+=(--split-compounds); fi
python3 "$shared/score.py" "$result" "${scored[@]}"
