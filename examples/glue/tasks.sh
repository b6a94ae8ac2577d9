# shellcheck shell=bash disable=SC2034,SC2154
# What the scripts of this example share: the tasks, and where everything lies. Settings:
#   TASK=mnli|sst-2|cola|mrpc|pairs   default: mnli
#   WORK=FOLDER    default: work/ in the example; all of a task is below WORK/TASK
#   GPUS=N         default: all of this machine; 0 is the CPU
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../translation/environment.sh
source "$here/../translation/environment.sh"
plugin=$root/lite_transformer_plugin
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONWARNINGS=ignore
declare -A classes=([mnli]=3 [sst-2]=2 [cola]=2 [mrpc]=2 [pairs]=3)
declare -A metrics=([mnli]=accuracy [sst-2]=accuracy [cola]=mcc [mrpc]=acc_and_f1 [pairs]=accuracy)
declare -A reports=([cola]=--report-mcc [mrpc]=--report-acc-and-f1)
TASK=${TASK:-mnli} WORK=${WORK:-$here/work}
[ -n "${classes[$TASK]:-}" ] || refuse "TASK ($TASK) must be one of: ${!classes[*]}"
folder=$WORK/$TASK
data=$folder/data-bin run=$folder/checkpoints
[ -n "${GPUS:-}" ] || GPUS=$(python3 -c 'import torch; print(torch.cuda.device_count())')
device=()
[ "$GPUS" != 0 ] || device=(--cpu)
# What every stock command has to know of a task.
task=(--user-dir "$plugin" --task sentence_prediction --criterion sentence_prediction
  --num-classes "${classes[$TASK]}")
[ -z "${reports[$TASK]:-}" ] || task+=("${reports[$TASK]}")

# The flags that `fairseq-import-checkpoint` printed: the sizes of the model and its layout of pairs.
read_model_flags() {
  [ -f "$folder/model/import.txt" ] || refuse "no model in $folder: run prepare.sh first"
  read -ra model_flags < <(sed -n 's/^to fine-tune: fairseq-train DATA --user-dir [^ ]* \(.*\) --criterion .*/\1/p' "$folder/model/import.txt")
}
# Those of them that belong to the task, for commands that take the model from a checkpoint.
read_layout() {
  read_model_flags
  layout=()
  local i
  for i in "${!model_flags[@]}"; do
    case ${model_flags[$i]} in
      --init-token | --separator-token | --max-positions)
        layout+=("${model_flags[$i]}" "${model_flags[$((i + 1))]}") ;;
    esac
  done
}
