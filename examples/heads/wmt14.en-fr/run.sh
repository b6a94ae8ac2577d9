#!/usr/bin/env bash
# The experiments of Michel et al. (2019) on fairseq's published WMT'14 English-French model.
#
# Downloads the model and newstest2013 (with a network), then runs fairseq-prune-heads.
# Started again, it goes on where it was. Settings, all optional:
#   WORK=FOLDER       where everything is written; default: work/ beside this script
#   MODEL=FOLDER      a folder that has model.pt, dict.en.txt, dict.fr.txt and bpecodes already
#   TEST=PREFIX       newstest2013 as PREFIX.en and PREFIX.fr, detokenised, a sentence a line
#   PROCESSES=N       share the work; default 1
#   SENTENCES=N       translate so many; default: all 3,000
#   RATIOS=R,R        points of the curves; default: 0,0.1 ... 1
#   ONLY="NAME ..."   these experiments alone: one, all-but-one (tables 1 and 2), by-importance,
#                     by-ablation, by-norm, by-random (figure 3), part-E, part-A, part-D (figure 4)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../../translation/environment.sh
source "$here/../../translation/environment.sh"
WORK=${WORK:-$here/work} MODEL=${MODEL:-} TEST=${TEST:-} PROCESSES=${PROCESSES:-1}
every="one all-but-one by-importance by-ablation by-norm by-random part-E part-A part-D"
ONLY=${ONLY:-$every}
for name in $ONLY; do
  [[ " $every " = *" $name "* ]] || refuse "ONLY ($name) must be some of: $every"
done
archive=wmt14.en-fr.joined-dict.transformer.tar.bz2
url=https://dl.fbaipublicfiles.com/fairseq/models/$archive
mkdir -p "$WORK"

if [ -z "$MODEL" ]; then
  MODEL=$WORK/model
  if [ ! -d "$MODEL" ]; then
    echo "downloading $url"
    curl --fail --location --continue-at - --output "$WORK/$archive" "$url" \
      || refuse "cannot download $url: get it elsewhere, unpack it, and name its folder with MODEL=FOLDER"
    mkdir -p "$MODEL.tmp"
    tar xjf "$WORK/$archive" --strip-components 1 -C "$MODEL.tmp" \
      || refuse "$WORK/$archive is no whole archive: delete it and start again"
    mv "$MODEL.tmp" "$MODEL"
  fi
fi
for name in model.pt dict.en.txt dict.fr.txt bpecodes; do
  [ -f "$MODEL/$name" ] || refuse "MODEL ($MODEL) has no $name"
done

if [ -z "$TEST" ]; then
  TEST=$WORK/newstest2013
  for side in src ref; do
    language=en
    [ "$side" = src ] || language=fr
    [ -s "$TEST.$language" ] || sacrebleu --test-set wmt13 --language-pair en-fr --echo "$side" >"$TEST.$language" \
      || { rm -f "$TEST.$language"; refuse "cannot download newstest2013: name your own files with TEST=PREFIX"; }
  done
fi
for language in en fr; do [ -s "$TEST.$language" ] || refuse "TEST: there is no $TEST.$language"; done

if [ ! -d "$WORK/data-bin" ]; then
  python3 "$here/pieces.py" "$MODEL/bpecodes" "$TEST" "$WORK/valid"
  rm -rf "$WORK/data-bin.tmp"
  fairseq-preprocess -s en -t fr --srcdict "$MODEL/dict.en.txt" --tgtdict "$MODEL/dict.fr.txt" \
    --validpref "$WORK/valid" --destdir "$WORK/data-bin.tmp" >"$WORK/preprocess.log" 2>&1 \
    || refuse "fairseq-preprocess failed: see $WORK/preprocess.log"
  mv "$WORK/data-bin.tmp" "$WORK/data-bin"
fi

prune() {
  local results=$1
  shift
  fairseq-prune-heads "$WORK/data-bin" --path "$MODEL/model.pt" --beam 5 --remove-bpe --batch-size 64 \
    --importance-subset valid --scoring sacrebleu --sacrebleu-tokenizer none \
    --processes "$PROCESSES" ${SENTENCES:+--subset-size "$SENTENCES"} ${RATIOS:+--ratios "$RATIOS"} \
    --results-dir "$WORK/$results" "$@"
}
for name in $ONLY; do
  case $name in
    one) prune one --ablate one ;;
    all-but-one) prune all-but-one --ablate all-but-one --ratios 0 ;;
    by-*) prune "$name" --order "${name#by-}" ;;
    part-*) prune "$name" --parts "${name#part-}" ;;
  esac
done
echo "results: $WORK"
