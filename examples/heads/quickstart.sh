#!/usr/bin/env bash
# Every experiment of fairseq-prune-heads on the model that `make demo` has trained.
#
# Started again, it goes on where it was. Settings, all optional:
#   DEMO=FOLDER     what the demo has written; default: ../quickstart/work
#   WORK=FOLDER     where everything is written; default: work-quickstart beside this script
#   PROCESSES=N     share the work; default 2
#   SENTENCES=N     for curves; default 200. Ablations always translate the whole validation set
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../translation/environment.sh
source "$here/../translation/environment.sh"
DEMO=${DEMO:-$here/../quickstart/work} WORK=${WORK:-$here/work-quickstart}
PROCESSES=${PROCESSES:-2} SENTENCES=${SENTENCES:-200}
model=$DEMO/lite_transformer_quickstart/checkpoints/checkpoint_last.pt
[ -f "$model" ] || refuse "DEMO ($DEMO) has no trained model: run \`make demo\` first"

# --compare-data wants the test set under the name of the split that is compared
elsewhere=$WORK/data-test
mkdir -p "$elsewhere"
cp "$DEMO"/data-bin/dict.*.txt "$elsewhere"
for file in "$DEMO"/data-bin/test.*; do
  cp "$file" "$elsewhere/valid.$(basename "$file" | cut -d . -f 2-)"
done

study() {
  local results=$WORK/$1
  shift
  fairseq-prune-heads "$DEMO/data-bin" --path "$model" --cpu --processes "$PROCESSES" \
    --beam 5 --lenpen 1.5 --max-len-a 1.2 --max-len-b 10 --batch-size 64 \
    --remove-bpe sentencepiece --skip-invalid-size-inputs-valid-test --results-dir "$results" "$@"
}
curve() { study "$@" --subset-size "$SENTENCES" --importance-steps 200; }

study one --ablate one --compare-data "$elsewhere" --ratios 0 --save-ratio 0.4
study all-but-one --ablate all-but-one --compare-data "$elsewhere" --ratios 0 --importance-steps 200
curve importance
curve raw --raw-importance
curve token --importance-unit token
curve raw-token --raw-importance --importance-unit token
curve reestimated --raw-importance --reestimate
curve at-least-one --raw-importance --min-heads-per-layer 1
curve ablation --order ablation
curve norm --order norm
for seed in 1 2 3; do curve "random-$seed" --order random --order-seed "$seed"; done
for part in E A D; do curve "part-$part" --parts "$part" --raw-importance; done
python3 "$here/overlay.py" "$WORK/by-importance" \
  "$WORK"/{importance,raw,token,raw-token,reestimated,at-least-one}
python3 "$here/overlay.py" "$WORK/by-order" "$WORK"/{importance,raw,ablation,norm,random-?}
python3 "$here/overlay.py" "$WORK/parts" "$WORK"/{raw,part-?}
