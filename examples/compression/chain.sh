#!/usr/bin/env bash
# From a trained model to one small file: heads away, zeros, codes, each trained on afterwards.
#
#   DATA=data-bin LITE=checkpoint_best.pt WORK=chain bash chain.sh
# What is there already is not made again: started again, it goes on. Settings:
#   HEADS=0.3          share of heads that go, those of least raw importance; 0: all stay
#   SPARSITY=0.4       share of weights that become zeros
#   BITS=4             of a code
#   UPDATES=600        after heads, after zeros and after codes; LR=0.001, after codes LR_CODES=0.0002
#   TRAIN="..."        flags of fairseq-train; default: those of the quickstart
#   ARCH="..."         flags of LITE's model, for control/; default: those of the quickstart
#   EVAL="..."         flags of fairseq-generate; default: those of the quickstart
#   TRANSFORMER=FILE   a transformer to compare with, the first row of the table
#   GPUS=N             default: all of this machine; 0 is the CPU
# control/ is LITE trained on for as many updates, all heads and weights being there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../translation/environment.sh
source "$here/../translation/environment.sh"
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONWARNINGS=ignore
plugin=$root/lite_transformer_plugin
WORK=${WORK:-$here/work} HEADS=${HEADS:-0.3} SPARSITY=${SPARSITY:-0.4} BITS=${BITS:-4}
UPDATES=${UPDATES:-600} LR=${LR:-0.001} LR_CODES=${LR_CODES:-0.0002}
TRANSFORMER=${TRANSFORMER:-} LITE=${LITE:-} DATA=${DATA:-}
[ -d "$DATA" ] || refuse "DATA ($DATA) must be a folder that fairseq-preprocess has made"
for file in "$LITE" ${TRANSFORMER:+"$TRANSFORMER"}; do
  [ -f "$file" ] || refuse "there is no checkpoint '$file': name it in LITE, or TRANSFORMER"
done
evaluation=(--beam 5 --lenpen 1.5 --max-len-a 1.2 --max-len-b 10 --batch-size 64
  --remove-bpe sentencepiece --skip-invalid-size-inputs-valid-test)
training=(--task translation --criterion label_smoothed_cross_entropy --label-smoothing 0.1
  --max-tokens 1536 --dropout 0.1 --required-batch-size-multiple 1)
# `read` stops at the end of a line: words of one line only.
read -ra evaluation <<<"${EVAL:-${evaluation[*]}}"
read -ra training <<<"${TRAIN:-${training[*]}}"
read -ra model <<<"${ARCH:---arch lite_transformer_quickstart --share-all-embeddings}"
[ -n "${GPUS:-}" ] || GPUS=$(python3 -c 'import torch; print(torch.cuda.device_count())')
device=()
[ "$GPUS" != 0 ] || device=(--cpu)
evaluation+=(--scoring sacrebleu "${device[@]}")
mkdir -p "$WORK"

# train NAME UPDATES LR WORDS...: to WORK/NAME/checkpoint_best.pt
train() {
  local folder=$WORK/$1 updates=$2 lr=$3
  shift 3
  [ ! -f "$folder/done" ] || return 0
  echo "training in $folder: $updates updates"
  fairseq-train "$DATA" --user-dir "$plugin" "${training[@]}" "$@" \
    --optimizer adam --adam-betas "(0.9, 0.98)" --clip-norm 1 --lr-scheduler polynomial_decay \
    --lr "$lr" --warmup-updates $((updates / 20)) --total-num-update "$updates" \
    --max-update "$updates" --save-interval-updates 150 --keep-interval-updates 1 \
    --no-epoch-checkpoints --seed 1 --num-workers 0 --log-format simple "${device[@]}" \
    --save-dir "$folder" >>"$folder.log" 2>&1 || refuse "fairseq-train failed: see $folder.log"
  date >"$folder/done"
}

compress() {  # compress NAME CHECKPOINT WORDS...: to WORK/NAME.pt
  local name=$1 path=$2
  shift 2
  [ ! -f "$WORK/$name.pt" ] || return 0
  echo "compressing $path to $name.pt"
  python3 -m lite_transformer_plugin.cli.compress "$DATA" --path "$path" "$@" \
    --output "$WORK/$name.pt" "${evaluation[@]}"
}

start=$LITE updates=$((2 * UPDATES)) rows=()
[ -z "$TRANSFORMER" ] || rows+=("transformer=$TRANSFORMER")
rows+=("lite=$LITE")
if [ "$HEADS" != 0 ]; then
  percent=$(python3 -c "print(f'{100 * float(\"$HEADS\"):g}')") start=$WORK/heads-trained/checkpoint_best.pt
  pruned=$WORK/heads/pruned-$percent.pt updates=$((3 * UPDATES))
  [ -f "$pruned" ] || python3 -m lite_transformer_plugin.cli.prune_heads "$DATA" --path "$LITE" \
    --raw-importance --ratios "0,$HEADS" --save-ratio "$HEADS" --subset-size 200 \
    --importance-steps 50 --results-dir "$WORK/heads" "${evaluation[@]}"
  train heads-trained "$UPDATES" "$LR" --arch pruned --pruned-from "$pruned" \
    --finetune-from-model "$pruned"
  rows+=("$percent % of heads removed=$pruned" "... trained on=$start")
fi
compress zeros "$start" --sparsity "$SPARSITY"
train zeros-trained "$UPDATES" "$LR" --arch compressed --compressed-from "$WORK/zeros.pt"
compress codes "$WORK/zeros-trained/checkpoint_best.pt" --bits "$BITS"
train codes-trained "$UPDATES" "$LR_CODES" --arch compressed --compressed-from "$WORK/codes.pt"
compress small "$WORK/codes-trained/checkpoint_best.pt"
train control "$updates" "$LR" "${model[@]}" --finetune-from-model "$LITE"

rows+=("zeros=$WORK/zeros.pt" "... trained on=$WORK/zeros-trained/checkpoint_best.pt"
  "$BITS bits=$WORK/codes.pt" "... trained on=$WORK/small.pt"
  "control=$WORK/control/checkpoint_best.pt")
python3 "$here/table.py" "$DATA" "${rows[@]}" --output "$WORK/chain" --force "${evaluation[@]}"
