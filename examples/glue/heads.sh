#!/usr/bin/env bash
# The paper's experiments on BERT's heads (Michel et al. 2019), with a fine-tuned model.
#
#   TASK=mnli bash heads.sh
# Every head alone masked and all but one of each layer; whether the same heads matter on the test set;
# the curve by ablation and by importance on the training set; a model without half of its heads, its
# score and its speed. Settings: those of tasks.sh, and
#   CHECKPOINT=FILE    default: the best of the training
#   STEPS=N            batches from which importance is measured; default: the whole training set
#   TOKENS=64 REPEATS=20 BATCHES="1 4 16 64"    of the measurement of speed: length of the sentences,
#                      turns, sentences at a time
#   ONLY="one all-but-one by-importance"    some of the studies; speed needs the last
# Words after it go to fairseq-prune-heads.
# shellcheck source-path=SCRIPTDIR source=tasks.sh
source "$(dirname "${BASH_SOURCE[0]}")/tasks.sh"
CHECKPOINT=${CHECKPOINT:-$run/checkpoint_best.pt} TOKENS=${TOKENS:-64} REPEATS=${REPEATS:-20}
BATCHES=${BATCHES:-1 4 16 64} ONLY=${ONLY:-one all-but-one by-importance}
[ -f "$CHECKPOINT" ] || refuse "no checkpoint $CHECKPOINT: run train.sh first, or name one in CHECKPOINT"
read_layout
metric=${metrics[$TASK]}
case $metric in mcc) metric=matthews ;; acc_and_f1) metric=f1 ;; esac
results=$folder/heads
mkdir -p "$results"

study() {  # study NAME WORDS...
  local name=$1
  shift
  [[ " $ONLY " == *" $name "* ]] || return 0
  echo "heads: $name"
  python3 -m lite_transformer_plugin.cli.prune_heads "$data" --path "$CHECKPOINT" \
    --task sentence_prediction --num-classes "${classes[$TASK]}" "${layout[@]}" \
    --metric "$metric" --batch-size 32 --required-batch-size-multiple 1 --parts E \
    ${STEPS:+--importance-steps "$STEPS"} "${device[@]}" --results-dir "$results/$name" "$@"
}

# The test set under the name of the validation set: what --compare-data reads.
elsewhere=$folder/test-as-valid
for kind in input0 input1 label; do
  [ -d "$data/$kind" ] || continue
  mkdir -p "$elsewhere/$kind"
  ln -sf "$data/$kind/dict.txt" "$elsewhere/$kind/"
  for end in bin idx; do ln -sf "$data/$kind/test.$end" "$elsewhere/$kind/valid.$end"; done
done

study one --gen-subset valid --ablate one --compare-data "$elsewhere" --order ablation "$@"
study all-but-one --gen-subset valid --ablate all-but-one --compare-data "$elsewhere" --ratios 0 "$@"
study by-importance --gen-subset valid --save-ratio 0.5 "$@"

half=$results/by-importance/pruned-50.pt
[ -f "$half" ] || exit 0
echo "score without half of the heads, on the test set"
CHECKPOINT=$half bash "$here/evaluate.sh"
echo "speed without half of the heads"
for batch in $BATCHES; do
  echo "batch $batch"
  python3 -m lite_transformer_plugin.cli.profile --path "$CHECKPOINT" "$half" \
    --latency --src-len "$TOKENS" --batch-size "$batch" --repeats "$REPEATS" --force \
    --json "$results/speed-$batch.json" | grep -e 'ms' -e relative
done
