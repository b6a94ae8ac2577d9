"""Translations are fairseq-generate's to the last bit; BLEU and its significance are sacreBLEU's."""

import multiprocessing
import os
import re
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.sequence_generator import EnsembleModel
from stock import LAST, NO_VALIDATION, generate, preprocess, train
from test_commands import write_corpus

from lite_transformer_plugin.evaluation import (
    Bleu,
    PairedBootstrap,
    Translations,
    Translator,
    choose,
    share,
)
from lite_transformer_plugin.heads import masked, parse_heads

COUNTS = {"train": 120, "valid": 30, "test": 27}
SEARCH = ["--beam", "3", "--max-len-b", "10", "--batch-size", "8", "--cpu", "--num-workers", "0"]


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """data/, and saved/checkpoint_last.pt, whose heads matter."""
    folder = tmp_path_factory.mktemp("evaluation")
    for seed, (name, count) in enumerate(COUNTS.items()):
        write_corpus(folder, name, count, seed)
    preprocess(folder / "data", *(f"--{name}pref={folder / name}" for name in COUNTS))
    train(folder / "data", folder / "saved", "--max-update", 60, NO_VALIDATION)
    state = torch.load(folder / "saved" / LAST)
    for name, weight in state["model"].items():
        if name.endswith("out_proj.weight"):
            weight.mul_(4)
    torch.save(state, folder / "saved" / LAST)
    return folder


def config(data: Path, checkpoint: Path, *words: str):
    """What fairseq-generate makes of its command line."""
    argv = [str(data), "--path", str(checkpoint), *SEARCH, *words]
    return convert_namespace_to_omegaconf(
        options.parse_args_and_arch(options.get_generation_parser(), argv)
    )


def load(work: Path, *words: str):
    """Task, model and configuration, as fairseq-generate has them before it translates."""
    cfg = config(work / "data", work / "saved" / LAST, *words)
    task = tasks.setup_task(cfg.task)
    [model], _ = checkpoint_utils.load_model_ensemble([cfg.common_eval.path], task=task)
    if cfg.common.fp16:
        model.half()
    model.prepare_for_inference_(cfg)
    return task, model, cfg


def translator(work: Path, *words: str, split: str = "test", **settings) -> Translator:
    return Translator(*load(work, *words), split, **settings)


def lines(found: Translations) -> dict[str, str]:
    """H- and D- lines as fairseq-generate prints them."""
    rows = zip(*found, strict=True)
    pairs = (
        ((f"H-{number}", f"{score}\t{tokens}"), (f"D-{number}", f"{score}\t{text}"))
        for number, tokens, text, score in rows
    )
    return dict(pair for both in pairs for pair in both)


@pytest.fixture
def printed(work, capsys):
    """The lines of fairseq-generate by their names."""

    def printed(*words, names: str = "HD") -> dict[str, str]:
        capsys.readouterr()
        generate(work / "data", work / "saved" / LAST, *SEARCH, *words)
        output = capsys.readouterr().out
        return dict(re.findall(rf"^([{names}]-\d+)\t(.*)$", output, re.MULTILINE))

    return printed


def same(found: Translations, printed: dict[str, str]) -> None:
    assert len(set(found.texts)) > 5  # else a mistake in their order would not be seen
    assert lines(found) == printed
