"""Compressed checkpoints: stock commands load them, bit for bit, or say what is damaged."""

import logging
import random
import re
import shlex
import time
import zipfile
from pathlib import Path

import pytest
import torch
from compressed_checkpoints import KINDS, code, compress, compress_every, expanded_every
from fairseq import checkpoint_utils
from head_models import MODELS, WORDS, full_pass, model_of
from pruned_checkpoints import QUICK, data_of, hypotheses, train_every
from stock import LAST, PLUGIN, call, interactive
from torch.testing import assert_close

from lite_transformer_plugin import build, checkpoint_files
from lite_transformer_plugin.cli.fine_tuning import fine_tuning_command
from lite_transformer_plugin.compression import KEY, expand, unpack
from lite_transformer_plugin.compression.trainable import make_trainable_, same_codes
from lite_transformer_plugin.models.compressed import TrainsValues, trainable


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Path:
    return tmp_path_factory.getbasetemp()


@pytest.fixture(scope="module")
def data(session) -> Path:
    return data_of(session)


@pytest.fixture(scope="module")
def compressed(session) -> dict:
    return compress_every(session)


# --- loading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_what_was_packed(kind, compressed, session):
    path, coded = compressed[kind]
    model, state = build.checkpoint(path)
    original = train_every(session)["lite_transformer" if kind == "pruned" else kind]
    assert type(build.checkpoint(original)[0]) in type(model).__mro__
    assert type(model).__name__ == type(build.checkpoint(original)[0]).__name__
    assert list(state["model"]) == [KEY]
    tensors = model.state_dict()
    assert tensors.keys() == coded.keys()
    for name, one in coded.items():
        assert torch.equal(tensors[name], expand(one)), name
    assert path.stat().st_size < original.stat().st_size


@pytest.mark.parametrize("kind", KINDS)
def test_stock_commands_see_the_expanded_model(kind, data, compressed, session, capsys, tmp_path):
    path, expanded = compressed[kind][0], expanded_every(session)[kind]
    texts, scores = hypotheses(capsys, data, path)
    expected = hypotheses(capsys, data, expanded)
    assert texts == expected[0] and len(texts) == 7 and torch.equal(scores, expected[1])
    words = ["--cpu", "--batch-size", 4, "--num-workers", 0, "--log-format", "json"]
    losses = []
    for each in (path, expanded):
        call(
            "validate", data, "--user-dir", PLUGIN, "--path", each, "--task", "translation", *words
        )
        losses += re.findall(r'"valid_loss": "(\S+)"', capsys.readouterr().out)[-1:]
    assert losses[0] == losses[1]
    (tmp_path / "source").write_text("a b c\nb a\n")
    interactive(data, path, "--input", tmp_path / "source")
    assert capsys.readouterr().out.count("\nH-") == 2


@pytest.mark.parametrize("kind", ["transformer_lm", "lite_transformer_lm", "roberta"])
def test_other_models_train_and_expand(kind):
    """As packed and expanded, the same logits; and gradients for every value."""
    model = model_of(kind)
    coded = code(dict(model.state_dict(keep_vars=True)), share=0.2)
    model.load_state_dict({name: expand(one) for name, one in coded.items()})
    expected = full_pass(model, kind).detach()
    values = trainable(model_of(kind), coded)
    found = full_pass(values, kind)
    assert_close(found, expected, rtol=0, atol=1e-5)
    found.square().mean().backward()
    assert all(p.grad is not None for n, p in values.named_parameters() if "original" in n)
    assert same_codes(unpack(values.state_dict()[KEY]), coded)


def test_overrides_reach_the_original(data, compressed):
    load = checkpoint_utils.load_model_ensemble_and_task
    overrides = {"dropout": 0.7, "data": str(data)}
    [model], cfg, _ = load([str(compressed["transformer"][0])], overrides)
    assert model.encoder.dropout_module.p == 0.7 == cfg.model.dropout


def test_loading_takes_at_most_twice_as_long(compressed, session):
    def seconds(path: Path) -> float:
        times = []
        for _ in range(5):
            start = time.process_time()
            build.checkpoint(path)
            times.append(time.process_time() - start)
        return min(times)

    expanded = expanded_every(session)["transformer"]
    assert seconds(compressed["transformer"][0]) < 2 * seconds(expanded)


# --- damage ---------------------------------------------------------------------------------------


def test_an_architecture_that_is_not_known(compressed, tmp_path):
    state = checkpoint_files.read(compressed["transformer"][0])
    vars(state["cfg"]["model"])["compressed_arch"] = "elsewhere"
    torch.save(state, tmp_path / "elsewhere.pt")
    with pytest.raises(ValueError, match="'elsewhere', an architecture that is not known here"):
        build.checkpoint(tmp_path / "elsewhere.pt")


def records(path: Path) -> dict[str, tuple[int, int]]:
    """Where the bytes of each part of a file lie."""
    data, found = path.read_bytes(), {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            start = info.header_offset + 26
            name, extra = (int.from_bytes(data[start + i :][:2], "little") for i in (0, 2))
            start = info.header_offset + 30 + name + extra
            found[info.filename.partition("/")[2]] = start, start + info.file_size
    return found


def flip(path: Path, place: int, output: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    output.write_bytes(data)
    return output


def load(path: Path) -> dict:
    return checkpoint_utils.load_model_ensemble_and_task([str(path)])[0][0].state_dict()


def test_a_flipped_byte_of_the_settings(compressed, tmp_path):
    path = compressed["transformer"][0]
    start, end = records(path)["data.pkl"]
    for place in random.Random(0).sample(range(start, end), 25):
        damaged = flip(path, place, tmp_path / "damaged.pt")
        with pytest.raises(ValueError, match="damaged.pt is cut short, or its header is damaged"):
            load(damaged)
        with pytest.raises(ValueError, match="damaged.pt is cut short, or its header is damaged"):
            checkpoint_files.read(damaged)


def test_a_flipped_byte_of_a_tensor(compressed, data, tmp_path):
    path = compressed["transformer"][0]
    start, end = records(path)["data/0"]
    for place in random.Random(1).sample(range(start, end), 25):
        damaged = flip(path, place, tmp_path / "damaged.pt")
        with pytest.raises(ValueError, match="compressed tensor \\S+ is damaged|header of the"):
            checkpoint_utils.load_model_ensemble_and_task([str(damaged)], {"data": str(data)})


def test_a_flipped_byte_anywhere_is_an_error_or_nothing(compressed, data, tmp_path):
    path, coded = compressed["transformer"]
    size = path.stat().st_size
    for place in [*range(0, 40), *range(size - 60, size), *range(0, size, size // 40)]:
        damaged = flip(path, place, tmp_path / "damaged.pt")
        try:
            model = checkpoint_utils.load_model_ensemble_and_task(
                [str(damaged)], {"data": str(data)}
            )[0][0]
        except (ValueError, RuntimeError, OSError, EOFError):
            continue
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, expand(coded[name])), (place, name)


@pytest.mark.parametrize("left", [0.1, 0.5, 0.99])
def test_cut_short(left, compressed, tmp_path):
    whole = compressed["transformer"][0].read_bytes()
    (tmp_path / "short.pt").write_bytes(whole[: int(left * len(whole))])
    with pytest.raises(ValueError, match="short.pt is cut short"):
        load(tmp_path / "short.pt")


# --- training on ----------------------------------------------------------------------------------


def line_for(path: Path, data: Path, *more) -> list:
    line = fine_tuning_command(path, str(data)).replace("lite_transformer_plugin", PLUGIN)
    command, *words = shlex.split(line)
    assert command == "fairseq-train" and "--compressed-from" in words
    return [*words, "--cpu", *QUICK, "--no-epoch-checkpoints", *more]


@pytest.mark.parametrize("kind", ["lite_transformer", "transformer", "pruned"])
def test_the_printed_line_trains_values_and_resumes(
    kind, data, compressed, session, tmp_path, capsys
):
    """Its checkpoints need no other file, have the same codes, and stock commands load them."""
    start = tmp_path / "start.pt"
    start.write_bytes(compressed[kind][0].read_bytes())
    words = line_for(start, data, "--save-dir", str(tmp_path))
    call("train", *words, "--max-update", 2)
    start.unlink()
    before = unpack(torch.load(tmp_path / LAST)["model"][KEY])
    assert same_codes(before, compressed[kind][1])
    changed = [
        n for n in before if not torch.equal(expand(before[n]), expand(compressed[kind][1][n]))
    ]
    assert any(before[name].codes is not None for name in changed)
    assert any(before[name].codes is None for name in changed)
    call("train", *words, "--max-update", 3)
    state = torch.load(tmp_path / LAST)
    assert state["optimizer_history"][-1]["num_updates"] == 3
    after = unpack(state["model"][KEY])
    assert same_codes(after, before)
    model, _ = build.checkpoint(tmp_path / LAST)
    assert all(torch.equal(t, expand(after[n])) for n, t in model.state_dict().items())
    assert len(hypotheses(capsys, data, tmp_path / LAST)[0]) == 7


def test_weights_without_zeros_train_on(data, session, tmp_path):
    """Between pruning and codes: zeros stay zeros, the other weights are free."""
    coded = compress(train_every(session)["transformer"], tmp_path / "sparse.pt", bits=None)
    words = line_for(tmp_path / "sparse.pt", data, "--save-dir", str(tmp_path))
    call("train", *words, "--max-update", 2)
    after = build.checkpoint(tmp_path / LAST)[0].state_dict()
    name = "encoder.layers.0.fc1.weight"
    assert torch.equal(after[name] == 0, expand(coded[name]) == 0) and (after[name] == 0).any()
    assert not torch.equal(after[name], expand(coded[name]))


def test_gradients_of_centroids_by_finite_differences():
    layer = torch.nn.Linear(30, 20).double()
    coded = code(dict(layer.state_dict(keep_vars=True)), bits=3, share=0.2)
    make_trainable_(layer, coded)
    centroids = layer.parametrizations.weight.original
    x = torch.linspace(-1, 1, 90, dtype=torch.float64).view(3, 30)

    def loss(values: torch.Tensor) -> torch.Tensor:
        key = "parametrizations.weight.original"
        return torch.func.functional_call(layer, {key: values}, x).tanh().square().sum()

    assert torch.autograd.gradcheck(loss, centroids, eps=1e-5, atol=1e-4)


def test_a_gradient_is_the_sum_of_those_of_its_weights():
    plain = model_of("transformer")
    coded = code(dict(plain.state_dict(keep_vars=True)), share=0.2)
    plain.load_state_dict({name: expand(one) for name, one in coded.items()})
    values = trainable(model_of("transformer"), coded)
    for model in (plain, values):
        full_pass(model, "transformer").square().mean().backward()
    name = "encoder.layers.1.fc2"
    one, dense = coded[f"{name}.weight"], plain.get_submodule(name).weight.grad.flatten()
    sums = torch.zeros(16).index_add_(0, one.codes.int(), dense[one.positions])
    found = values.get_submodule(name).parametrizations.weight.original.grad[0]
    assert_close(found, sums, rtol=1e-4, atol=1e-7)


def test_tied_weights_have_one_parameter():
    arch, flags, _ = MODELS["transformer"]
    model = build.architecture(arch, WORDS, ["--share-decoder-input-output-embed", *flags[:-2]])
    coded = code(dict(model.state_dict(keep_vars=True)))
    make_trainable_(model, coded)
    pair = (model.decoder.embed_tokens, model.decoder.output_projection)
    first, second = (module.parametrizations.weight.original for module in pair)
    assert first is second and first.shape == (1, 16)


def test_fairseq_train_says_what_is_damaged(compressed, data, tmp_path, caplog):
    """fairseq itself says only that architectures do not match."""
    path = compressed["transformer"][0]
    words = line_for(path, data, "--save-dir", str(tmp_path))
    call("train", *words, "--max-update", 1)
    state = torch.load(tmp_path / LAST)
    state["model"][KEY][-1] ^= 1
    torch.save(state, tmp_path / LAST)
    caplog.set_level(logging.ERROR)
    with pytest.raises(Exception, match="architectures match"):
        call("train", *words, "--max-update", 2)
    assert any(re.search(r"tensor \S+ is damaged", r.message) for r in caplog.records)


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "--arch compressed needs --compressed-from CKPT"),
        (["--compressed-from", "PLAIN"], "this model is not compressed"),
    ],
)
def test_what_there_is_to_train(words, message, data, session, tmp_path):
    words = [str(train_every(session)["transformer"]) if w == "PLAIN" else w for w in words]
    common = ["--user-dir", PLUGIN, "--arch", "compressed", "--save-dir", str(tmp_path)]
    with pytest.raises(ValueError, match=message):
        call("train", data, *common, *words, "--optimizer", "adam")


def test_other_codes_are_refused(data, session, compressed, tmp_path):
    model = build.checkpoint(compressed["transformer"][0])[0]
    model.__class__ = type(model).__mro__[2]
    values = trainable(model, compressed["transformer"][1])
    assert isinstance(values, TrainsValues)
    other = compress(train_every(session)["transformer"], tmp_path / "other.pt", bits=3)
    with pytest.raises(ValueError, match="its codes are others"):
        values.load_state_dict(checkpoint_files.read(tmp_path / "other.pt")["model"])
    assert other and not same_codes(other, compressed["transformer"][1])
    with pytest.raises(ValueError, match="this checkpoint is not compressed"):
        values.load_state_dict({"weight": torch.zeros(1)})
