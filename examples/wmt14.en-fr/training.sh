# shellcheck shell=bash disable=SC2034,SC2154
# WMT'14 En-Fr: what differs from the other WMT example; read by train.sh and evaluate.sh.

languages=en_fr
warmup_updates=5000
# shellcheck source-path=SCRIPTDIR source=../translation/wmt_training.sh
source "$shared/wmt_training.sh"

target=fr
compounds=0  # 1: a-b becomes three words before tokenised BLEU is counted
