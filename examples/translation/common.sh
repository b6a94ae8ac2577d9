# shellcheck shell=bash disable=SC2034,SC2154
# What train.sh and evaluate.sh share; sourced by both, with the example's folder in $example.

# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
plugin=$root/lite_transformer_plugin
stage='' log=''

say_how_it_ended() {
  local status=$?
  [ "$status" -ne 0 ] && [ -n "$stage" ] || return 0
  if [ "$status" -eq 130 ] || [ "$status" -eq 143 ]; then
    echo "$command: stopped while $stage; the same command goes on from here" >&2
  elif [ -n "$log" ] && [ -s "$log" ]; then
    echo "$command: failed while $stage (exit status $status): $(tail -n 1 "$log" | cut -c 1-200) [whole log: $log]" >&2
  else
    echo "$command: failed while $stage (exit status $status)" >&2
  fi
}
trap say_how_it_ended EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

announce() { stage=$1 log=''; echo "[$((SECONDS / 60)):$(printf %02d $((SECONDS % 60)))] $stage"; }

# number NAME VALUE LEAST: refuse anything but a whole number.
number() {
  [[ $2 =~ ^(0|[1-9][0-9]*)$ ]] && [ "$2" -ge "$3" ] \
    || refuse "$1 ($2) must be a whole number from $3"
}

# one_of NAME VALUE CHOICE...
one_of() {
  local name=$1 value=$2 choice
  shift 2
  for choice; do [ "$value" != "$choice" ] || return 0; done
  refuse "$name ($value) must be one of: $*"
}

# ---- Settings that both scripts take from the environment. ----
# shellcheck source-path=SCRIPTDIR source=../wmt16.en-de/training.sh
source "$example/training.sh"
MODEL=${MODEL:-lite_transformer} FORCE=${FORCE:-0} WORK=${WORK:-$example/work}
one_of MODEL "$MODEL" "${!sizes[@]}"
one_of FORCE "$FORCE" 0 1
read -ra choices <<<"${sizes[$MODEL]}"
SIZE=${SIZE:-${choices[0]}}
one_of "SIZE of $MODEL" "$SIZE" "${choices[@]}"
arch=$(architecture "$MODEL" "$SIZE")
RUN=${RUN:-$arch}
[[ $RUN =~ ^[A-Za-z0-9._-]+$ ]] || refuse "RUN ($RUN) must be a plain name: letters, digits, . _ -"
[ -d "$WORK/data-bin" ] || refuse "no data in WORK ($WORK): run prepare.sh first"
WORK=$(cd "$WORK" && pwd)
run=$WORK/$RUN

# Without a GPU everything runs on the CPU, slowly.
if [ -z "${GPUS:-}" ]; then
  GPUS=$(python3 -c 'import torch; print(torch.cuda.device_count())')
fi
number GPUS "$GPUS" 0
