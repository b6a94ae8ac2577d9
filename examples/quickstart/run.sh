#!/usr/bin/env bash
# German to English through a Lite Transformer that is trained on the spot.
#
# Prepares the corpus, trains, translates the test set, scores it and shows five translations.
# Stopped (Ctrl-C) and started again it goes on where it was. Settings, all optional:
#   MINUTES=10     wall time of the whole job; a larger number later goes on training
#   COMPARE=1      then trains fairseq's transformer of equal cost as long, and prints both scores
#   MAX_UPDATE=N   train N updates, whatever time they take
#   ARCH=NAME      another architecture of fairseq or of this plugin
#   WORK=FOLDER    where everything is written; default: work/ beside this script
set -euo pipefail

# ---- The recipe: the sizes are in the architecture, all else that decides quality is here. ----
# A training that is under way keeps its checkpoints: try changes in another WORK.
recipe=(
  --share-all-embeddings
  --max-tokens 1024                                # a batch, padding included
  --dropout 0                                      # minutes of training cannot overfit
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0
  --lr-scheduler polynomial_decay --lr 0.004       # the peak; falls to 0 when the time is over
  --seed 1
)
longest_warmup=300                                 # updates; a quarter of a short training
search=(--beam 5 --lenpen 1.5 --max-len-a 1.2 --max-len-b 10 --batch-size 64)
reserve=75                                         # seconds of MINUTES for all but training
# -----------------------------------------------------------------------------------------------

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
plugin=$root/lite_transformer_plugin
stage='' log=''

refuse() { echo "run.sh: $*" >&2; exit 2; }

say_how_it_ended() {
  local status=$?
  [ "$status" -ne 0 ] && [ -n "$stage" ] || return 0
  if [ "$status" -eq 130 ] || [ "$status" -eq 143 ]; then
    echo "run.sh: stopped while $stage; the same command goes on from here" >&2
  elif [ -n "$log" ]; then
    echo "run.sh: failed while $stage (exit status $status): $(tail -n 1 "$log" | cut -c 1-200) [whole log: $log]" >&2
  else
    echo "run.sh: failed while $stage (exit status $status)" >&2
  fi
}
trap say_how_it_ended EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

MINUTES=${MINUTES:-10} COMPARE=${COMPARE:-0} MAX_UPDATE=${MAX_UPDATE:-}
ARCH=${ARCH:-lite_transformer_quickstart} WORK=${WORK:-$here/work}
[[ $MINUTES =~ ^[0-9]+(\.[0-9]+)?$ && ! $MINUTES =~ ^[0.]+$ ]] \
  || refuse "MINUTES ($MINUTES) must be a number above 0, such as 10 or 2.5"
[[ $COMPARE =~ ^[01]$ ]] || refuse "COMPARE ($COMPARE) must be 0 or 1"
[[ $MAX_UPDATE =~ ^([1-9][0-9]*)?$ ]] \
  || refuse "MAX_UPDATE ($MAX_UPDATE) must be a whole number above 0"
[[ $ARCH =~ ^[A-Za-z0-9_]+$ ]] || refuse "ARCH ($ARCH) must be the name of an architecture"

# An environment that is already active comes first, then the one `make` builds.
venv=$root/.venv/bin
if ! command -v fairseq-train >/dev/null && [ -x "$venv/fairseq-train" ]; then PATH=$venv:$PATH; fi
command -v fairseq-train >/dev/null \
  || refuse "fairseq-train not found: run \`make demo\`, or activate an environment that has it"

mkdir -p "$WORK" || refuse "WORK ($WORK) cannot be made"
WORK=$(cd "$WORK" && pwd)
exec 9>"$WORK/lock"
if command -v flock >/dev/null && ! flock --nonblock 9; then
  refuse "another run is at work in $WORK"
fi
export PYTHONUNBUFFERED=1                          # the progress lines come when they are written

# A small MINUTES still trains for half of it.
budget=$(python3 -c "import sys; m = 60 * float(sys.argv[1]); print(round(max(m - $reserve, m / 2), 1))" "$MINUTES")

announce() { stage=$1 log=''; echo "[$((SECONDS / 60)):$(printf %02d $((SECONDS % 60)))] $stage"; }

# logged LOG TOTAL COMMAND...: all output into LOG, on screen only how far of TOTAL it is.
logged() {
  log=$1
  "${@:3}" 2>&1 | python3 "$here/progress.py" "$log" "$2"
}

prepare() {
  announce "preparing the corpus"
  python3 "$here/prepare.py" "$WORK"
  [ -d "$WORK/data-bin" ] && return
  announce "fairseq-preprocess: sentences to numbers"
  rm -rf "$WORK/data-bin.tmp"
  logged "$WORK/preprocess.log" 0 fairseq-preprocess --source-lang de --target-lang en \
    --trainpref "$WORK/pieces/train" --validpref "$WORK/pieces/valid" \
    --testpref "$WORK/pieces/test" --joined-dictionary --destdir "$WORK/data-bin.tmp" \
    --workers "$(getconf _NPROCESSORS_ONLN)"
  mv "$WORK/data-bin.tmp" "$WORK/data-bin"
}

# train ARCH: in three runs of fairseq-train, as schedule.py explains; leaves `command` behind.
train() {
  local model=$WORK/$1 answer phase from total warmup save_every stop_hours
  while :; do
    announce "planning the training of $1"
    answer=$(python3 "$here/schedule.py" "$model/checkpoints" "$model/schedule.json" \
      --budget "$budget" --warmup "$longest_warmup" ${MAX_UPDATE:+--max-update "$MAX_UPDATE"})
    read -r phase from total warmup save_every stop_hours <<<"$answer"
    # Checkpoints come by updates alone: an epoch is no natural pause here.
    command=(fairseq-train "$WORK/data-bin" --user-dir "$plugin" --arch "$1" "${recipe[@]}"
      --warmup-updates "$warmup" --total-num-update "$total" --max-update "$total"
      --stop-time-hours "$stop_hours" --save-dir "$model/checkpoints"
      --save-interval-updates "$save_every" --keep-interval-updates 1 --no-epoch-checkpoints
      --save-interval 1000000 --validate-interval 1000000
      --required-batch-size-multiple 1 --num-workers 0 --cpu
      --log-format simple --log-interval 20)
    case $phase in
      finished) return ;;
      measure)
        announce "fairseq-train: first $total updates, which measure the speed"
        command+=(--disable-validation) ;;
      train) announce "fairseq-train: from update $from to $total" ;;
    esac
    logged "$model/train.log" "$total" "${command[@]}"
  done
}

# translate ARCH: the whole test set, unless that was done with this very checkpoint.
translate() {
  local model=$WORK/$1 sentences
  local checkpoint=$model/checkpoints/checkpoint_last.pt
  [ "$model/generate.txt" -nt "$checkpoint" ] && return
  announce "fairseq-generate: translating the test set"
  sentences=$(wc -l <"$WORK/text/test.de")
  rm -f "$model/generate.tmp"
  # One thread: the steps of the search are so small that a second one gains nothing, and makes
  # it many times slower when anything else runs on the machine.
  OMP_NUM_THREADS=1 logged "$model/generate.tmp" "$sentences" fairseq-generate "$WORK/data-bin" \
    --user-dir "$plugin" --path "$checkpoint" --gen-subset test "${search[@]}" \
    --remove-bpe sentencepiece --required-batch-size-multiple 1 --cpu --log-format simple --log-interval 1
  mv "$model/generate.tmp" "$model/generate.txt"
}

job() {
  mkdir -p "$WORK/$1"
  train "$1"
  translate "$1"
  announce "scoring"
  python3 "$here/score.py" "$WORK/$1" --text "$WORK/text" --command "${command[*]@Q}"
}

prepare
job "$ARCH"
if [ "$COMPARE" = 1 ]; then
  job transformer_quickstart
  python3 "$here/score.py" --table "$WORK/$ARCH" "$WORK/transformer_quickstart"
fi
announce "finished: results and logs are in $WORK"
