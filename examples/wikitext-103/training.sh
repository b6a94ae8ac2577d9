# shellcheck shell=bash disable=SC2034,SC2154
# WikiText-103: the authors' settings in today's flags. The second size of each model is for a small
# corpus on a CPU: shorter samples, Adam, an ordinary softmax. Read by train.sh and evaluate.sh.

declare -A sizes=([lite_transformer]="896 192" [transformer]="512 112")
architecture() {
  case $1.$2 in
    lite_transformer.896) echo lite_transformer_lm_wiki103 ;;
    transformer.512) echo transformer_lm_wiki103_512 ;;
    *) echo "$1_lm_small" ;;
  esac
}

task=language_modeling
case ${SIZE:-} in
  192 | 112)
    tokens_per_sample=256
    tokens_per_update=2048
    largest_batch=2048                 # eight samples at once
    context=192                        # tokens before those that are scored
    recipe=(
      --criterion cross_entropy --dropout 0.1
      --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0
      --lr-scheduler polynomial_decay --lr 0.003 --warmup-updates 200
      --max-update 3000 --total-num-update 3000
      --save-interval-updates 500 --keep-interval-updates 2
    )
    ;;
  *)
    tokens_per_sample=3072
    tokens_per_update=$((8 * 3072 * 3))  # 8 GPUs, 3 batches each, as in fairseq's recipe
    largest_batch=3072                   # one sample
    context=2560
    updates=286000                       # warm-up, then the first period of the cosine
    recipe=(                             # sizes and dropout rates are in the architecture
      --criterion adaptive_loss --optimizer nag --clip-norm 0.1
      --lr-scheduler cosine --lr 1.0 --min-lr 1e-9 --warmup-updates 16000 --warmup-init-lr 1e-7
      --lr-period-updates 270000 --t-mult 2 --lr-shrink 0.75
      --max-update "$updates" --keep-last-epochs 5 --ddp-backend legacy_ddp
    )
    ;;
esac
recipe+=(--sample-break-mode none --tokens-per-sample "$tokens_per_sample")
baseline=()
