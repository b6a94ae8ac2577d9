# shellcheck shell=bash disable=SC2034,SC2154
# WMT: the authors' settings in today's flags; sourced by the training.sh of both examples, which
# set $languages, such as en_de, and $warmup_updates.

declare -A sizes=(
  [lite_transformer]="200 408 496"
  [transformer]="128 256 320 512"
)
architecture() {
  case $1.$2 in
    transformer.512) echo transformer_wmt_en_de ;;  # fairseq's own: Transformer base
    transformer.*) echo "transformer_wmt_$2" ;;
    *) echo "$1_wmt_${languages}_$2" ;;
  esac
}

tokens_per_update=$((8 * 4096 * 16))  # 8 GPUs, 16 batches each
updates=50000                         # the cosine falls from the end of the warmup to the last one
recipe=(                              # sizes and dropout rates are in the architecture
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1
  --optimizer adam --adam-betas '(0.9, 0.98)' --weight-decay 0 --clip-norm 0
  --lr-scheduler cosine --lr 0.001 --min-lr 1e-9
  --warmup-updates "$warmup_updates" --warmup-init-lr 1e-7
  --lr-period-updates $((updates - warmup_updates)) --t-mult 1 --lr-shrink 1
  --max-update "$updates" --keep-last-epochs 20 --ddp-backend legacy_ddp
)
baseline=(--share-all-embeddings)

average=0                             # the best checkpoint by itself
search=(--beam 4 --lenpen 0.6)
lowercased=0
