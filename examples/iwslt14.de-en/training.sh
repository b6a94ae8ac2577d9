# shellcheck shell=bash disable=SC2034
# IWSLT'14 De-En: the authors' settings in today's flags; read by train.sh and evaluate.sh.

declare -A sizes=(
  [lite_transformer]="160 240 320"
  [transformer]="128 192 240"
  [lightconv]="128 192 256"
)
architecture() { echo "$1_iwslt_de_en_$2"; }

tokens_per_update=4096             # one GPU
recipe=(                           # sizes and dropout rates are in the architecture
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1
  --optimizer adam --adam-betas '(0.9, 0.98)' --weight-decay 0.0001 --clip-norm 0
  --lr-scheduler inverse_sqrt --lr 0.0005 --warmup-updates 4000 --warmup-init-lr 1e-7
  --max-update 50000 --keep-last-epochs 20
)
baseline=(--dropout 0.2)           # the authors give none for their baselines: that of LSRA

target=en
average=10                         # checkpoints, of the last epochs
search=(--beam 4 --lenpen 1)
lowercased=1                       # the corpus is
compounds=0
