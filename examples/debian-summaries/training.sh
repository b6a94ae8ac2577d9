# shellcheck shell=bash disable=SC2034
# Two summarisers of equal cost, small enough for a CPU; read by train.sh and evaluate.sh.

declare -A sizes=([lite_transformer]="160" [transformer]="104")
architecture() { echo "$1_quickstart"; }

tokens_per_update=2048             # of sources, which are the longer side
recipe=(
  --max-source-positions 2048 --dropout 0.1
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0
  --lr-scheduler polynomial_decay --lr 0.003 --warmup-updates 500
  --max-update 8000 --total-num-update 8000
  --save-interval-updates 500 --keep-interval-updates 2
)
baseline=()

target=target
average=0                          # the best checkpoint
search=(--beam 4 --lenpen 1 --max-len-a 0 --max-len-b 40 --no-repeat-ngram-size 3)
spoken=en
metric=rouge
lead=1                             # sentences of the baseline
lowercased=0
compounds=0
