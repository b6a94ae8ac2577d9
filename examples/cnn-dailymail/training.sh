# shellcheck shell=bash disable=SC2034,SC2154
# CNN/DailyMail: the authors' settings in today's flags; read by train.sh and evaluate.sh.

languages=''
warmup_updates=10000
# shellcheck source-path=SCRIPTDIR source=../translation/wmt_training.sh
source "$shared/wmt_training.sh"

declare -A sizes=([lite_transformer]="496" [transformer]="512")
architecture() {
  case $1 in
    lite_transformer) echo lite_transformer_cnn_dm ;;
    *) echo transformer_wmt_en_de ;;  # Transformer base
  esac
}
recipe+=(--max-source-positions 2048)  # an article of 1,000 tokens is more pieces

target=target
search=(--beam 4 --lenpen 2 --min-len 55 --max-len-b 140 --no-repeat-ngram-size 3)
spoken=en
metric=rouge
lead=3                                 # sentences of the baseline
compounds=0
