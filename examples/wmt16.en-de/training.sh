# shellcheck shell=bash disable=SC2034,SC2154
# WMT'16 En-De: what differs from the other WMT example; read by train.sh and evaluate.sh.

languages=en_de
warmup_updates=10000
# shellcheck source-path=SCRIPTDIR source=../translation/wmt_training.sh
source "$shared/wmt_training.sh"

target=de
compounds=1  # 1: a-b becomes three words before tokenised BLEU is counted
