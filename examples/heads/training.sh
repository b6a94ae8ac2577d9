# shellcheck shell=bash disable=SC2034
# Two models of equal cost (63M Mult-Adds), small enough for a CPU; read by train.sh and evaluate.sh.

declare -A sizes=([lite_transformer]="168" [transformer]="128")
architecture() {                   # the size that costs as much is given in flags below
  case $1 in
    lite_transformer) echo lite_transformer_iwslt_de_en_160 ;;
    *) echo "$1_iwslt_de_en_$2" ;;
  esac
}

tokens_per_update=1024             # small updates learn most from the hours of a CPU
recipe=(
  --encoder-embed-dim 168          # fairseq-profile --find-width 63M: 60.1M
  --share-all-embeddings --dropout 0                # not three epochs: nothing is learnt by heart
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0
  --lr-scheduler polynomial_decay --lr 0.002 --warmup-updates 500
  --max-update 16000 --total-num-update 16000       # 2.7 epochs
  --save-interval-updates 500 --keep-interval-updates 2
)
baseline=(--encoder-embed-dim 128 --encoder-attention-heads 8 --decoder-attention-heads 8)

target=en
average=0                          # the best checkpoint
search=(--beam 4 --lenpen 1)
lowercased=0
compounds=0
