"""Every head is masked as asked and scored against the whole model; two sets are compared."""

import random
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from test_evaluation import COUNTS, make_work, translator

from lite_transformer_plugin.evaluation import Translations
from lite_transformer_plugin.heads import Head, attentions, format_heads, masked, parse_heads
from lite_transformer_plugin.heads.ablation import Ablation, ablate, correlate, format_ablation
from lite_transformer_plugin.heads.ablation import tested_elsewhere as elsewhere  # it is no test
from lite_transformer_plugin.report import format_csv
from lite_transformer_plugin.scoring import Bleu, PairedBootstrap
from lite_transformer_plugin.significance import Comparison

SENTENCES = 50
TINY = ["--encoder-embed-dim=16", "--encoder-layers=2", "--decoder-layers=1"]
HEADS = [*TINY, "--encoder-attention-heads=2", "--decoder-attention-heads=4"]


def sentences(damaged: int = 0) -> list[str]:
    """Fifty sentences, of which the last are damaged."""
    draw = random.Random(1)
    rows = [" ".join(f"w{draw.randint(0, 40)}" for _ in range(9)) for _ in range(SENTENCES)]
    return [row if i < SENTENCES - damaged else f"{row[:9]} X" for i, row in enumerate(rows)]


class Canned:
    """A translator that damages sentences for each head that it finds masked in its model."""

    references = sentences()

    def __init__(self, model, costs: dict[str, int] | None = None):
        self.model, self.calls = model, []
        self.costs = costs or {}

    def run(self, keep_encoder: bool = False, shared: bool = False) -> list[str]:
        return self.translate(keep_encoder, shared).texts

    def translate(self, keep_encoder: bool = False, shared: bool = False) -> Translations:
        heads = [
            Head(attention.part, attention.layer, number)
            for attention in attentions(self.model)
            for gate in getattr(getattr(attention.module, "gated", None), "gates", [])
            for number, open_ in zip(attention.heads, gate.tolist(), strict=True)
            if not open_
        ]
        self.calls.append((format_heads(heads), keep_encoder, shared))
        texts = sentences(4 + sum(self.costs.get(str(head), 1) for head in heads))
        return Translations(list(range(SENTENCES)), texts, texts, [0.0] * SENTENCES)


@pytest.fixture
def model(build):
    """Two heads in each encoder layer, four in both attentions of the decoder."""
    return build("--arch", "transformer", *HEADS)


def run(translator, *args, **settings) -> Ablation:
    return ablate(translator, Bleu(translator.references), *args, **{"resamples": 100, **settings})


def names(text: str) -> list[Head]:
    return parse_heads(text)


EVERY = names("E:1:1,2 E:2:1,2 A:1:1-4 D:1:1-4")


# --- what is masked -------------------------------------------------------------------------------


def test_one_masks_every_head_alone(model):
    canned = Canned(model)
    found = run(canned, "one")
    base, *calls = canned.calls
    assert base == ("", True, True)
    assert calls == [(str(head), head.part != "E", False) for head in EVERY]
    assert list(found.results) == EVERY


def test_all_but_one_masks_the_others_of_the_module(model):
    canned = Canned(model)
    found = run(canned, "all-but-one")
    masks = dict(zip(found.results, (call[0] for call in canned.calls[1:]), strict=True))
    assert masks[Head("E", 2, 1)] == "E:2:2"
    assert masks[Head("A", 1, 3)] == "A:1:1,2,4"
    assert masks[Head("D", 1, 1)] == "D:1:2-4"
    assert list(masks) == EVERY


def test_a_head_that_is_alone_is_the_whole_model(build):
    alone = build("--arch", "transformer", *TINY, "--encoder-attention-heads=1")
    canned = Canned(alone)
    found = run(canned, "all-but-one", parts=["E"])
    assert {call[0] for call in canned.calls} == {""}
    assert set(found.results.values()) == {Comparison(found.base, 0.0, 1.0)}
    run(canned, "one", parts=["E"])
    assert canned.calls[-1][0] == "E:2:1"


def test_parts_can_be_chosen(model):
    found = run(Canned(model), "one", parts=["D", "E"])
    assert list(found.results) == names("E:1:1,2 E:2:1,2 D:1:1-4")


def test_removed_heads_are_not_ablated(model):
    """Names stay those of the whole model."""
    module = model.decoder.layers[0].self_attn
    module.heads_left = (2, 4)
    module.num_heads, module.head_dim = 2, 8
    canned = Canned(model)
    found = run(canned, "all-but-one", parts=["D"])
    assert list(found.results) == names("D:1:2,4")
    assert [call[0] for call in canned.calls[1:]] == ["D:1:4", "D:1:2"]


def test_bad_input_is_one_line(model, build):
    canned = Canned(model)
    cases = [
        (dict(kind="two"), "there is no ablation 'two', choose one of one, all-but-one"),
        (dict(parts=["X"]), "there is no part 'X'"),
        (dict(known={Head("E", 9, 1): Comparison(1.0, 0.0, 1.0)}), "E:9:1: the model has"),
    ]
    for settings, message in cases:
        with pytest.raises(ValueError, match=message):
            run(canned, **settings)
    assert not canned.calls  # all is refused before the first translation
    convolutions = Canned(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="Linear has no heads of encoder self-attention: nothing"):
        run(convolutions, "one", parts=["E"])


# --- figures --------------------------------------------------------------------------------------


def test_figures_are_those_of_the_bootstrap(model):
    found = run(Canned(model, {"A:1:2": 20}), "one")
    bleu = Bleu(sentences())
    bootstrap = PairedBootstrap(bleu, sentences(4), resamples=100)
    assert found.base == bleu.score(sentences(4)) == bootstrap.base
    assert found.signature == bootstrap.signature and "bs:100|seed:12345" in found.signature
    assert found.results[Head("A", 1, 2)] == bootstrap.compare(sentences(24))
    assert found.results[Head("A", 1, 1)] == bootstrap.compare(sentences(5))
    worst = found.results[Head("A", 1, 2)]
    assert worst.significant and worst.difference == worst.score - found.base < -20


def test_rows_are_sorted_figures(model):
    found = run(Canned(model), "one")
    rows = found.rows()
    assert [row["head"] for row in rows] == [str(head) for head in EVERY]
    last = found.results[EVERY[-1]]
    assert rows[-1] == {"head": "D:1:4", "bleu": last.score, "difference": last.difference} | {
        "p": last.p
    }
    assert format_csv(rows).startswith("head,bleu,difference,p\nE:1:1,")


# --- stopped and started again --------------------------------------------------------------------


def test_a_run_goes_on_where_it_was_stopped(model):
    costs = {"E:1:2": 9, "D:1:3": 5}
    whole, known = run(Canned(model, costs), "one"), {}

    def stop(head, result):
        known[head] = result
        if len(known) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Canned(model, costs), "one", on_result=stop)
    assert list(known) == EVERY[:5]
    assert not any(hasattr(attention.module, "gated") for attention in attentions(model))

    canned, new = Canned(model, costs), []
    assert run(canned, "one", known=known, on_result=lambda head, _: new.append(head)) == whole
    assert new == EVERY[5:] and len(canned.calls) == 1 + len(new)
    assert list(known) == EVERY[:5]  # the caller's own is left alone


# --- tables ---------------------------------------------------------------------------------------


def ablation(kind: str, differences: dict[str, float], p: dict[str, float] | None = None):
    results = {
        head: Comparison(30 + difference, difference, (p or {}).get(name, 0.5))
        for name, difference in differences.items()
        for head in names(name)
    }
    return Ablation(kind, 30.0, results, "")


DIFFERENCES = {"E:1:1": -1.5, "E:1:2": 0.25, "E:2:2": -0.5, "A:1:1": -12.0, "A:1:2": -12.0}


def test_the_table_has_layers_below_and_heads_beside_each_other():
    table = format_ablation(ablation("one", DIFFERENCES, {"E:1:1": 0.001, "A:1:2": 0.0101}))
    assert table.splitlines() == [
        "BLEU without one head, difference to 30.00 (* p < 0.01)",
        "",
        "E, encoder self-attention",
        "layer       1       2",
        "---------------------",
        "1      -1.50*  +0.25",
        "2              -0.50",
        "",
        "A, encoder-decoder attention",
        "layer        1        2",
        "-----------------------",
        "1      -12.00   -12.00",
    ]


def test_the_best_heads_of_all_but_one_have_a_table():
    found = ablation("all-but-one", DIFFERENCES, {"E:1:2": 0.002})
    assert found.best() == {
        ("E", 1): Head("E", 1, 2),
        ("E", 2): Head("E", 2, 2),
        ("A", 1): Head("A", 1, 1),  # the first of equal ones
    }
    assert format_ablation(found).splitlines()[-5:] == [
        "best head of each layer",
        "layer       E        A",
        "----------------------",
        "1      +0.25*  -12.00",
        "2      -0.50",
    ]


# --- two sets -------------------------------------------------------------------------------------


def test_correlation_is_pearsons():
    other = {name: 2 * value + 1 for name, value in DIFFERENCES.items()}
    exact = correlate(ablation("one", DIFFERENCES), ablation("one", other))
    assert exact.r == pytest.approx(1) and exact.p < 1e-6 and exact.heads == 5
    other["E:1:1"] = 40.0
    r, _, _ = correlate(ablation("one", DIFFERENCES), ablation("one", other))
    assert r == pytest.approx(np.corrcoef(list(DIFFERENCES.values()), list(other.values()))[0, 1])


def test_the_p_value_is_students():
    """r = 0.5 over 27 heads: t = r sqrt(25 / (1 - r^2)) = 2.887, p = .008 from any table of t."""
    draw = np.random.default_rng(0)
    x, noise = draw.normal(size=(2, 27))
    x, noise = x - x.mean(), noise - noise.mean()
    noise -= x * (noise @ x) / (x @ x)
    y = x / np.linalg.norm(x) + 3**0.5 * noise / np.linalg.norm(noise)
    pair = [
        ablation("one", {f"E:1:{i + 1}": float(value) for i, value in enumerate(values)})
        for values in (x, y)
    ]
    found = correlate(*pair)
    assert found.r == pytest.approx(0.5) and found.p == pytest.approx(0.0079, abs=1e-4)


def test_heads_chosen_on_one_set_are_tested_on_the_other():
    chosen = ablation("all-but-one", DIFFERENCES)
    there = {"E:1:1": 1.0, "E:1:2": -3.0, "E:2:2": -0.75, "A:1:1": -14.0, "A:1:2": -2.0}
    rows = elsewhere(chosen, ablation("all-but-one", there, {"E:1:2": 0.001}))
    assert rows == [
        dict(head="E:1:2", bleu=27.0, difference=-3.0, p=0.001, difference_where_chosen=0.25),
        dict(head="E:2:2", bleu=29.25, difference=-0.75, p=0.5, difference_where_chosen=-0.5),
        dict(head="A:1:1", bleu=16.0, difference=-14.0, p=0.5, difference_where_chosen=-12.0),
    ]


def test_sets_must_fit_together():
    one, fewer = ablation("one", DIFFERENCES), ablation("one", {"E:1:1": 0.0})
    for pair in ((one, fewer), (one, ablation("all-but-one", DIFFERENCES))):
        for compare in (correlate, elsewhere):
            with pytest.raises(ValueError, match="of different kinds or of different heads"):
                compare(*pair)
    flat = ablation("one", dict.fromkeys(DIFFERENCES, 0.0))
    for pair in ((fewer, fewer), (one, flat), (flat, one)):
        with pytest.raises(ValueError, match="needs three heads or more that differ"):
            correlate(*pair)


# --- a real model, one process and two ------------------------------------------------------------


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return make_work(tmp_path_factory.getbasetemp())


def ablate_real(work: Path, rank: int | None = None, address: str = "") -> tuple[Ablation, list]:
    if rank is not None:
        torch.distributed.init_process_group("gloo", address, rank=rank, world_size=2)
    opened, mine = translator(work), []
    found = run(opened, "one", parts="DE", on_result=lambda head, _: mine.append(str(head)))
    return found, mine


def other_process(_, work: Path, address: str, file: Path) -> None:
    torch.set_num_threads(1)
    found, mine = ablate_real(work, 1, address)
    torch.save((found.rows(), mine), file)


def test_two_processes_share_the_heads_and_get_the_figures_of_one(work, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    file, how = tmp_path / "other.pt", dict(nprocs=1, join=False)
    other = torch.multiprocessing.spawn(other_process, (work, address, file), **how)
    try:
        found, mine = ablate_real(work, 0, address)
        other.join()
    finally:
        torch.distributed.destroy_process_group()
    alone, every = ablate_real(work)
    theirs, other_mine = torch.load(file)
    assert found == alone and theirs == alone.rows()
    assert (mine, other_mine) == (every[::2], every[1::2])


def test_figures_of_a_real_model(work):
    opened = translator(work)
    found = run(opened, "all-but-one", parts="A")
    bleu, others = Bleu(opened.references), parse_heads("A:2:1,2,4")
    assert found.base == bleu.score(opened.translate().texts)
    with masked(opened.model, others):
        expected = bleu.score(opened.translate().texts)
    assert found.results[Head("A", 2, 3)].score == expected != found.base
    assert len(opened.numbers) == COUNTS["test"]
