#!/usr/bin/env bash
# Train one model of an example with the authors' settings; started again, it goes on.
#
# Run through the train.sh of an example. Words after it go to fairseq-train, the last one wins:
#   bash train.sh --max-update 100000
# Settings, all optional:
#   MODEL=NAME  SIZE=CHANNELS   what to train; a wrong one lists what there is
#   RUN=NAME        folder of this training below WORK; default: the architecture
#   GPUS=N          of this machine; default: all; 0 is the CPU
#   MAX_TOKENS=N    in one batch of one GPU; the accumulation follows, the update stays the same
#   FP16=0          float32, as the authors did; default on a GPU: 1
#   NODES=N NODE_RANK=R MASTER=HOST:PORT    several machines, this line on each
#   LAUNCHER=slurm  inside a Slurm job: srun starts fairseq-hydra-train
#   DRY_RUN=1       print the command and stop
#   FORCE=1         begin anew: the checkpoints of RUN are deleted
#   WORK=FOLDER     where prepare.sh wrote; default: work/ in the example
set -euo pipefail

example=$1
shift
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

LAUNCHER=${LAUNCHER:-} DRY_RUN=${DRY_RUN:-0} MASTER=${MASTER:-} NODE_RANK=${NODE_RANK:-0}
if [ "$LAUNCHER" = slurm ]; then
  [ -n "${SLURM_NNODES:-}" ] && [ -n "${SLURM_NTASKS_PER_NODE:-}" ] \
    || refuse "LAUNCHER=slurm needs a job of Slurm with --nodes and --ntasks-per-node"
  NODES=$SLURM_NNODES
  processes=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))
else
  [ -z "$LAUNCHER" ] || refuse "LAUNCHER ($LAUNCHER) must be slurm or not set"
  NODES=${NODES:-1}
  number NODES "$NODES" 1
  processes=$((NODES * (GPUS > 0 ? GPUS : 1)))
fi
one_of DRY_RUN "$DRY_RUN" 0 1
one_of FP16 "${FP16:=$((GPUS > 0))}" 0 1
[ "$FP16" = 0 ] || [ "$GPUS" -gt 0 ] || refuse "FP16 (1) needs a GPU"
if [ "$NODES" -gt 1 ] && [ "$LAUNCHER" != slurm ]; then
  [[ $MASTER =~ ^[A-Za-z0-9._-]+:[0-9]+$ ]] \
    || refuse "MASTER ($MASTER) must be HOST:PORT of the first node when NODES is $NODES"
  number NODE_RANK "$NODE_RANK" 0
  [ "$NODE_RANK" -lt "$NODES" ] || refuse "NODE_RANK ($NODE_RANK) must be below NODES ($NODES)"
  [ "$GPUS" -gt 0 ] || refuse "NODES ($NODES) needs GPUs"
fi

# The update holds tokens_per_update tokens, however many GPUs share them.
share=$((tokens_per_update / processes))
most=${largest_batch:-4096}
MAX_TOKENS=${MAX_TOKENS:-$((share < most ? share : most))}
number MAX_TOKENS "$MAX_TOKENS" 1
accumulate=$((share / MAX_TOKENS))
[ $((processes * accumulate * MAX_TOKENS)) -eq "$tokens_per_update" ] \
  || refuse "$processes GPUs times MAX_TOKENS ($MAX_TOKENS) must divide $tokens_per_update, the tokens of an update"

flags=("$WORK/data-bin" --user-dir "$plugin" --task "${task:-translation}" --arch "$arch" "${recipe[@]}"
  --max-tokens "$MAX_TOKENS" --update-freq "$accumulate" --distributed-world-size "$processes"
  --save-dir "$run/checkpoints" --seed 1 --log-format simple --log-interval 100)
[ "$MODEL" = lite_transformer ] || flags+=("${baseline[@]}")
if [ "$GPUS" -eq 0 ]; then flags+=(--cpu); fi
if [ "$FP16" = 1 ]; then flags+=(--fp16); fi
flags+=("$@")

if [ "$LAUNCHER" = slurm ]; then
  # Rank and device come from Slurm's variables; a port of the job's own lets jobs share a node.
  port=$((20000 + ${SLURM_JOB_ID:-0} % 20000))
  launch=(srun fairseq-hydra-train --config-dir "$run" --config-name training
    "distributed_training.distributed_port=$port" "hydra.run.dir=$run/hydra")
elif [ "$NODES" -gt 1 ]; then
  launch=(torchrun --nnodes "$NODES" --node-rank "$NODE_RANK" --nproc-per-node "$GPUS"
    --master-addr "${MASTER%:*}" --master-port "${MASTER##*:}"
    "$(command -v fairseq-train)" "${flags[@]}")
else
  launch=(fairseq-train "${flags[@]}")
fi

echo "$arch: updates of $tokens_per_update tokens = $processes x $MAX_TOKENS, accumulated $accumulate times"
if [ "$DRY_RUN" = 1 ]; then
  [ "$LAUNCHER" != slurm ] || printf 'training.yaml of: fairseq-train %s\n' "${flags[*]@Q}"
  printf '%s\n' "${launch[*]@Q}"
  exit
fi

mkdir -p "$run"
if [ "$NODES" = 1 ] && [ "$LAUNCHER" != slurm ] && command -v flock >/dev/null; then
  exec 9>"$run/lock"
  flock --nonblock 9 || refuse "another training is at work in $run"
fi
if [ "$FORCE" = 1 ] && [ "$NODE_RANK" = 0 ]; then rm -rf "$run/checkpoints" "$run/train.log"; fi
if [ "$LAUNCHER" = slurm ]; then
  announce "writing training.yaml, the flags for fairseq-hydra-train"
  python3 "$shared/to_hydra.py" "$run/training.yaml" "${flags[@]}"
fi
announce "training $arch in $run"
printf '%s\n' "${launch[*]@Q}" >"$run/train.command"
log=$run/train.log
[ "$NODE_RANK" = 0 ] || log=$run/train.$NODE_RANK.log
"${launch[@]}" 2>&1 | tee -a "$log"
announce "finished: checkpoints are in $run/checkpoints"
