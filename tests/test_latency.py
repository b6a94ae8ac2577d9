"""Measured times: right work, right number of turns, nothing left behind."""

import pytest
import torch

from lite_transformer_plugin import build
from lite_transformer_plugin.cost import Lengths, latency
from lite_transformer_plugin.cost.latency import Setting, Timing, measure

SMALL = ["--encoder-embed-dim", "16", "--encoder-layers", "1", "--decoder-layers", "1"]
KERNELS = ["--encoder-kernel-size-list", "3", "--decoder-kernel-size-list", "3"]
BART = ["--encoder-attention-heads", "2", "--decoder-attention-heads", "2"]
BART += ["--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "8"]
LM = ["--decoder-layers", "1", "--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "8"]


@pytest.mark.parametrize(
    "arch, flags, kinds",
    [
        ("transformer", SMALL, ["encoder", "decoder step", "beam search"]),
        ("lite_transformer", SMALL + KERNELS, ["encoder", "decoder step", "beam search"]),
        ("bart_base", SMALL + BART, ["encoder", "decoder step", "beam search"]),
        ("transformer_lm_gpt2_tiny", LM, ["decoder step", "beam search"]),
        ("roberta_base", SMALL[:4] + ["--encoder-attention-heads", "4"], ["encoder"]),
    ],
)
def test_every_kind_of_model_is_measured(arch, flags, kinds):
    model = build.architecture(arch, 30, flags)
    for target in (6, 1):
        found = measure({"m": model}, Setting(Lengths(5, target), repeats=3, warmup=0))
        assert list(found["m"]) == kinds
        for timing in found["m"].values():
            assert 0 < timing.lower <= timing.median <= timing.upper


def test_work_has_the_asked_size(monkeypatch):
    model = build.architecture("transformer", 30, SMALL)
    setting = Setting(Lengths(7, 5), batch_size=3, beam=2, repeats=2, warmup=1)
    calls = {"encoder": [], "decoder": []}
    for side in calls:
        part = getattr(model, side)

        def forward(*args, side=side, stock=part.forward, **kwargs):
            tokens = args[0] if args else kwargs["src_tokens"]
            calls[side].append(tuple(tokens.shape))
            return stock(*args, **kwargs)

        monkeypatch.setattr(part, "forward", forward)
    measure({"m": model}, setting)
    assert set(calls["encoder"]) == {(3, 7)}
    # alone: three sentences, four words before the last; searching: five steps of three beams
    steps = [(3, 1), (3, 2), (3, 3), (3, 4)] + [(3, 5)] * 3
    searches = [(6, n) for n in range(1, 6)] * 3
    assert sorted(calls["decoder"]) == sorted(steps + searches)


def test_models_take_turns_and_warm_up_is_not_counted(monkeypatch):
    order = []
    works = {name: {"work": lambda name=name: lambda: order.append(name)} for name in ("a", "b")}
    monkeypatch.setattr(latency, "_works", lambda model, setting: works[model])
    monkeypatch.setattr(latency, "_check_positions", lambda *_: None)
    seconds = []
    monkeypatch.setattr(Timing, "of", classmethod(lambda cls, turns: seconds.append(len(turns))))
    measure({"a": "a", "b": "b"}, Setting(repeats=3, warmup=2))
    assert order == ["a", "b"] * 5
    assert seconds == [3, 3]


def test_threads_are_restored():
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), latency.threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise RuntimeError
    assert torch.get_num_threads() == before


def test_median_and_quartiles():
    assert Timing.of([0.003, 0.001, 0.002, 0.005, 0.004]) == Timing(3.0, 2.0, 4.0)
    assert Timing.of([0.002]) == Timing(2.0, 2.0, 2.0)


@pytest.mark.parametrize("name", ["batch_size", "beam", "threads", "repeats"])
def test_settings_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} \\(0\\)"):
        Setting(**{name: 0})


def test_sentences_beyond_the_positions_are_refused():
    model = build.architecture("transformer", 30, SMALL)
    with pytest.raises(ValueError, match="m: 2000 tokens are more than its encoder's 1024"):
        measure({"m": model}, Setting(Lengths(2000, 5)))
