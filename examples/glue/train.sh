#!/usr/bin/env bash
# Fine-tune the imported model with stock fairseq-train; started again, it goes on.
#
#   TASK=mnli bash train.sh
# Words after it go to fairseq-train, the last one wins. Settings: those of tasks.sh, and
#   EPOCHS=3 LR=3e-5 BATCH=32    as BERT is fine-tuned (Devlin et al. 2019, section A.3)
#   AT_ONCE=N                    sentences at a time, BATCH is made of these; default: BATCH
# shellcheck source-path=SCRIPTDIR source=tasks.sh
source "$(dirname "${BASH_SOURCE[0]}")/tasks.sh"
[ -f "$folder/prepared" ] || refuse "$folder is not prepared: run prepare.sh first"
EPOCHS=${EPOCHS:-3} LR=${LR:-3e-5} BATCH=${BATCH:-32}
AT_ONCE=${AT_ONCE:-$BATCH}
for setting in EPOCHS BATCH AT_ONCE; do
  [[ ${!setting} =~ ^[1-9][0-9]*$ ]] || refuse "$setting (${!setting}) must be a whole number from 1"
done
[ $((BATCH % AT_ONCE)) = 0 ] || refuse "AT_ONCE ($AT_ONCE) must divide BATCH ($BATCH)"
examples=$(wc -l <"$folder/text/train.label")
updates=$((EPOCHS * ((examples + BATCH - 1) / BATCH)))
read_model_flags

train=(fairseq-train "$data" "${task[@]}" "${model_flags[@]}"
  --finetune-from-model "$folder/model/model.pt"
  --optimizer adam --adam-betas '(0.9, 0.98)' --weight-decay 0.01 --clip-norm 1
  --lr-scheduler polynomial_decay --lr "$LR" --warmup-updates $((updates / 10))
  --total-num-update "$updates" --max-update "$updates"
  --batch-size "$AT_ONCE" --update-freq $((BATCH / AT_ONCE)) --required-batch-size-multiple 1
  --best-checkpoint-metric "${metrics[$TASK]}" --maximize-best-checkpoint-metric
  --no-epoch-checkpoints --save-interval-updates 500 --keep-interval-updates 1
  --save-dir "$run" --seed 1 --log-format simple --log-interval 20 "${device[@]}")
train+=("$@")
mkdir -p "$folder"
printf '%s\n' "${train[*]@Q}" >"$folder/train.command"
echo "training in $run: $updates updates of $BATCH examples"
"${train[@]}" 2>&1 | tee -a "$folder/train.log"
