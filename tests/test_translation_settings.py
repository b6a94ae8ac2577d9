"""The settings of the translation examples are the papers', as stock fairseq reads them."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from fairseq import optim
from fairseq.optim.lr_scheduler import build_lr_scheduler
from translation_examples import (
    EN_DE,
    EN_FR,
    EXAMPLES,
    IWSLT,
    configuration,
    corpus,
    script,
    succeeded,
)

PUBLISHED = json.loads((EXAMPLES.parent / "lite_transformer_plugin/published.json").read_text())


@pytest.mark.parametrize(
    "example, merges, lowercase, clean, held_out, dictionary",
    [
        (IWSLT, 10000, True, ("clean_tokens", 1.5, 1, 175), 23, []),
        (EN_DE, 32000, False, ("clean_tokens", 9, 1, 80), None, "--joined-dictionary"),
        (EN_FR, 40000, False, ("clean_pieces", 1.5, 1, 250), 1333, ["--joined-dictionary"]),
    ],
)
def test_corpora_are_the_papers(example, merges, lowercase, clean, held_out, dictionary):
    steps = corpus(example)["steps"]
    kind, ratio, shortest, longest = clean
    assert steps["bpe_merges"] == merges and steps["lowercase"] is lowercase
    assert steps[kind] == dict(ratio=ratio, shortest=shortest, longest=longest)
    assert steps.get("hold_out") == held_out
    assert dictionary == steps["dictionary"] or dictionary in steps["dictionary"]


@pytest.fixture(scope="module")
def empty_work(tmp_path_factory) -> Path:
    work = tmp_path_factory.mktemp("empty")
    (work / "data-bin").mkdir()
    return work


def dry_run(example: str, work: Path, *words, **settings) -> list[str]:
    output = succeeded(script(example, "train", *words, WORK=work, DRY_RUN=1, **settings))
    return shlex.split(output.splitlines()[-1])


WMT = dict(weight_decay=0, warmup_init_lr=1e-7, lr=[0.001], t_mult=1, lr_shrink=1, min_lr=1e-9)
SETTINGS = [
    (
        IWSLT,
        (160, 240, 320),
        [(0.2, 0, 0.1)] * 3,
        dict(weight_decay=1e-4, warmup_init_lr=1e-7, lr=[5e-4], warmup_updates=4000),
    ),
    (
        EN_DE,
        (200, 408, 496),
        [(0.04, 0.03, 0.03), (0.08, 0.06, 0.06), (0.1, 0.08, 0.08)],
        dict(warmup_updates=10000, lr_period_updates=40000, **WMT),
    ),
    (
        EN_FR,
        (200, 408, 496),
        [(0.04, 0.03, 0.03), (0.08, 0.07, 0.07), (0.1, 0.08, 0.08)],
        dict(warmup_updates=5000, lr_period_updates=45000, **WMT),
    ),
]


@pytest.mark.parametrize("example, sizes, rates, expected", SETTINGS)
def test_settings_are_the_authors(example, sizes, rates, expected, empty_work):
    for size, noise in zip(sizes, rates, strict=True):
        cfg = configuration(dry_run(example, empty_work, SIZE=size))
        assert cfg.model.encoder_embed_dim == size
        found = (cfg.model.dropout, cfg.model.attention_dropout, cfg.model.weight_dropout)
        assert found == noise
        assert cfg.model.get("share_all_embeddings") is (example != IWSLT)
        assert cfg.criterion.label_smoothing == 0.1 and cfg.optimizer.adam_betas == "(0.9, 0.98)"
        assert cfg.optimization.max_update == 50000 and not cfg.common.fp16
        both = {**cfg.optimizer, **cfg.lr_scheduler}
        assert {name: both[name] for name in expected} == expected


@pytest.mark.parametrize("example, warmup", [(EN_DE, 10000), (EN_FR, 5000)])
def test_the_cosine_rises_to_its_maximum_and_falls_to_nothing(example, warmup, empty_work):
    cfg = configuration(dry_run(example, empty_work))
    optimizer = optim.build_optimizer(cfg.optimizer, [torch.nn.Parameter(torch.zeros(1))])
    scheduler = build_lr_scheduler(cfg.lr_scheduler, optimizer)
    rates = [scheduler.step_update(n) for n in (0, warmup, 49999)]
    assert rates == pytest.approx([1e-7, 1e-3, 1e-9], abs=1e-9, rel=1e-6)


@pytest.mark.parametrize(
    "example, model, size, arch",
    [
        (IWSLT, "transformer", 128, "transformer_iwslt_de_en_128"),
        (IWSLT, "lightconv", 256, "lightconv_iwslt_de_en_256"),
        (EN_DE, "transformer", 320, "transformer_wmt_320"),
        (EN_FR, "transformer", 512, "transformer_wmt_en_de"),
    ],
)
def test_baselines(example, model, size, arch, empty_work):
    cfg = configuration(dry_run(example, empty_work, MODEL=model, SIZE=size))
    assert cfg.model._name == arch and cfg.model.encoder_embed_dim == size
    assert cfg.model.share_all_embeddings is (example != IWSLT)


@pytest.mark.parametrize(
    "example, settings, max_tokens, update_freq, processes",
    [
        (IWSLT, dict(GPUS=0), 4096, 1, 1),
        (IWSLT, dict(GPUS=1), 4096, 1, 1),
        (IWSLT, dict(GPUS=4), 1024, 1, 4),
        (EN_DE, dict(GPUS=0), 4096, 128, 1),
        (EN_DE, dict(GPUS=8), 4096, 16, 8),
        (EN_DE, dict(GPUS=4), 4096, 32, 4),
        (EN_DE, dict(GPUS=1, MAX_TOKENS=16384), 16384, 32, 1),
        (EN_FR, dict(GPUS=8, NODES=2, MASTER="first.host:29500"), 4096, 8, 16),
    ],
)
def test_the_update_stays_the_same(
    example, settings, max_tokens, update_freq, processes, empty_work
):
    command = dry_run(example, empty_work, **settings)
    flags = dict(zip(command, command[1:], strict=False))
    assert flags["--max-tokens"] == str(max_tokens)
    assert flags["--update-freq"] == str(update_freq)
    assert flags["--distributed-world-size"] == str(processes)
    assert ("--cpu" in command) is (settings["GPUS"] == 0)
    assert ("--fp16" in command) is (settings["GPUS"] > 0)


@pytest.mark.parametrize(
    "example, benchmark",
    [(IWSLT, "iwslt14_de_en"), (EN_DE, "wmt16_en_de"), (EN_FR, "wmt14_en_fr")],
)
def test_published_figures_are_in_the_readme(example, benchmark):
    rows = [
        [cell.strip(" *`") for cell in line.split("|")]
        for line in (EXAMPLES / example / "README.md").read_text().splitlines()
        if line.startswith("|")
    ]
    figures = [entry for entry in PUBLISHED["quality"] if entry["benchmark"] == benchmark]
    assert len(figures) > 6
    for entry in figures:
        name = entry["model"].replace("_", " ")
        matching = [
            row
            for row in rows
            if row[1].replace("_", " ").lower().startswith(name) and row[3] == entry["mult_adds"]
        ]
        assert [row[5] for row in matching] == [str(entry["score"])], entry
