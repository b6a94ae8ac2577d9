"""Several processes train one model of the translation examples: torchrun, and Slurm."""

import json
import random
import sys
import threading
from functools import partial

import torch
from fairseq.distributed.utils import infer_init_method
from translation_examples import (
    EN_DE,
    EN_FR,
    ONE_LAYER,
    configuration,
    lines,
    read,
    results,
    script,
    stand_in,
    succeeded,
    text_steps,
    write_en_fr,
)

NOTE_THE_START = """import json, os, pathlib, sys
names = ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"]
found = dict(words=sys.argv, environment={name: os.environ[name] for name in names})
pathlib.Path(sys.argv[0]).with_name(os.environ["RANK"] + ".json").write_text(json.dumps(found))"""


def test_two_machines_with_torchrun(tmp_path, monkeypatch):
    """torchrun itself, on one machine twice; fairseq-train only notes how it was started."""
    stand_in(tmp_path / "fairseq-train", NOTE_THE_START, sys.executable)
    master = f"127.0.0.1:{random.randint(20000, 60000)}"
    (tmp_path / "work/data-bin").mkdir(parents=True)
    settings = dict(WORK=tmp_path / "work", GPUS=1, NODES=2, MASTER=master, path=f"{tmp_path}:")
    started = partial(script, EN_DE, "train", **settings)
    second = threading.Thread(target=started, kwargs=dict(NODE_RANK=1), daemon=True)
    second.start()
    succeeded(started(NODE_RANK=0))
    second.join(timeout=60)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for name, value in found["environment"].items():
            monkeypatch.setenv(name, value)
        training = configuration(found["words"]).distributed_training
        infer_init_method(training)
        assert training.distributed_init_method == "env://"
        assert (training.distributed_world_size, training.distributed_rank) == (2, rank)
        assert (training.device_id, training.distributed_no_spawn) == (0, True)


# Without a GPU there is no device to choose by SLURM_LOCALID.
SRUN = """for rank in 1 0; do
  SLURM_STEP_NODELIST=here SLURM_PROCID=$rank SLURM_LOCALID=0 "$@" & tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || exit 1; done"""


def test_wmt_en_fr_from_corpus_to_score_with_slurm(tmp_path):
    """Two tasks train together, started as Slurm would start them."""
    stand_in(tmp_path / "scontrol", "echo 127.0.0.1")
    stand_in(tmp_path / "srun", SRUN, "/usr/bin/env bash")
    work, run = tmp_path / "work", "lite_transformer_wmt_en_fr_200"
    data = write_en_fr(tmp_path / "data")
    succeeded(script(EN_FR, "prepare", DATA=data, WORK=work, WORKERS=1, BPE_MERGES=800))
    # the 1333rd of 1350; some of the others are too unequal
    source = text_steps.normalise(lines("train", "en", 1332, 1)[0], "en")
    assert read(work / "words/valid.en") == [text_steps.tokenise(source, "en", True)]
    assert len(read(work / "words/train.en")) == 1349
    assert 1100 < len(read(work / "pieces/train.en")) < 1349

    job = dict(SLURM_NNODES=1, SLURM_NTASKS_PER_NODE=2, SLURM_JOB_ID=random.randint(1, 19999))
    words = ["--max-update", 2, "--update-freq", 1, "--max-tokens", 500]
    words += ["--distributed-backend", "gloo"]  # the others need GPUs
    output = script(
        EN_FR, "train", *words, *ONE_LAYER, LAUNCHER="slurm", WORK=work, path=f"{tmp_path}:", **job
    )
    succeeded(output)
    assert "initialized host" in (work / run / "train.log").read_text()
    state = torch.load(work / run / "checkpoints/checkpoint_last.pt")
    training = state["cfg"]["distributed_training"]
    assert training["distributed_world_size"] == 2 and training["distributed_no_spawn"]
    assert state["optimizer_history"][-1]["num_updates"] == 2
    assert state["cfg"]["model"]["_name"] == run
    assert state["cfg"]["lr_scheduler"]["lr_period_updates"] == 45000

    output = succeeded(script(EN_FR, "evaluate", "--max-len-b", 10, WORK=work))
    assert "BLEU4 = " in output and "version:" in output
    result = results(work, run, "test.best")
    assert result["sentences"] == 10 and not result["compounds_split"]
