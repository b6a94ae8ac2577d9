"""Pruned checkpoints in stock commands: they load strictly, train on, and need no other file."""

import copy
import logging
import re
import shlex
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from conftest import randomise
from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from stock import LAST, NO_VALIDATION, PLUGIN, call, generate, interactive, make_data, train
from test_commands import TRAIN
from test_head_names import size
from test_head_removal import old_names
from torch import Tensor, nn
from torch.testing import assert_close

from lite_transformer_plugin import build, checkpoint_files
from lite_transformer_plugin.cli import average_checkpoints, profile
from lite_transformer_plugin.cli.fine_tuning import fine_tuning_command
from lite_transformer_plugin.cost import count
from lite_transformer_plugin.heads import list_heads, parse_heads
from lite_transformer_plugin.models.pruned import model_config, prune_checkpoint

HEADS = "E:1:1 E:2:1-4 A:1:2,3 A:2:1-4 D:1:1-3"  # two layers lose all theirs
MODELS = {
    "lite_transformer": ("lite_transformer", size(2, 4)),
    "transformer": ("transformer", size(2, 4)),
    "bart": ("bart_base", size(2, 4)),
}
FORMATS = [*MODELS, "legacy"]  # the last one as fairseq wrote a transformer in 2018
MASKS = ["--task", "prune_heads", "--mask-heads", HEADS]
OPTIMIZER = ["--adam-betas", "(0.9, 0.98)", "--lr-scheduler", "inverse_sqrt", "--warmup-updates=9"]
QUICK = [NO_VALIDATION, "--num-workers=0"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_data(tmp_path_factory.mktemp("pruned"))


@pytest.fixture(scope="module")
def trained(data) -> dict[str, Path]:
    """A checkpoint of every kind, with random weights, so that translations differ."""
    paths = {}
    for kind, (arch, flags) in MODELS.items():
        sizes = [f"--{side}-{n}={v}" for side in ("encoder", "decoder") for n, v in flags.items()]
        how = ["--arch", arch, "--share-all-embeddings", *sizes, *TRAIN[9:], *OPTIMIZER]
        train(data, data / kind, "--max-update", 1, *QUICK, how=how)
        paths[kind] = data / f"{kind}.pt"
        model, state = randomised(data / kind / LAST)
        torch.save(state | {"model": model.state_dict()}, paths[kind])
    paths["legacy"] = data / "legacy.pt"
    torch.save(as_legacy(torch.load(paths["transformer"])), paths["legacy"])
    return paths


def randomised(path: Path) -> tuple[nn.Module, dict]:
    """A model in which attention has a say, and its checkpoint with the weights it had."""
    model = randomise(build.checkpoint(path)[0])
    for name, parameter in model.named_parameters():
        if name.endswith("out_proj.weight"):
            parameter.data *= 5
    return model, checkpoint_files.read(path)


def as_legacy(state: dict) -> dict:
    """One flat Namespace instead of a configuration, and tensors under their old names."""
    args = Namespace(**vars(state.pop("cfg")["model"]))
    del args._name
    return state | {"args": args, "model": old_names(state["model"])}


def prune(path: Path, heads: str = HEADS, name: str | None = None) -> Path:
    model, _ = build.checkpoint(path)
    state = prune_checkpoint(checkpoint_files.read(path), parse_heads(heads), model)
    pruned = path.with_name(name or f"pruned-{path.name}")
    torch.save(state, pruned)
    return pruned


@pytest.fixture(scope="module")
def pruned(trained) -> dict[str, Path]:
    return {kind: prune(path) for kind, path in trained.items()}


@pytest.fixture(autouse=True)
def log_handlers():
    """fairseq-validate replaces them."""
    before = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = before


def entries(cfg) -> dict:
    return vars(cfg) if isinstance(cfg, Namespace) else dict(cfg)


def hypotheses(capsys, data: Path, path: Path, *words) -> tuple[list[str], Tensor]:
    """What fairseq-generate prints: every hypothesis, and the scores of its words."""
    capsys.readouterr()
    generate(data, path, "--num-workers", 0, *words)
    out = capsys.readouterr().out
    texts = re.findall(r"^(H-\d+)\t\S+\t(.*)", out, re.MULTILINE)
    scores = re.findall(r"^P-\d+\t(.*)", out, re.MULTILINE)
    return texts, torch.tensor([float(score) for line in scores for score in line.split()])


# --- what is in the file --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_the_configuration_says_what_is_gone(kind, trained, pruned):
    before, after = checkpoint_files.read(trained[kind]), checkpoint_files.read(pruned[kind])
    old, new = entries(model_config(before)), entries(model_config(after))
    name = "_name" if "_name" in old else "arch"
    changed = {"_name", "arch", "pruned_heads", "original_arch"}
    assert new["pruned_heads"] == HEADS and new["original_arch"] == old[name]
    assert new[name] == "pruned"
    assert {k: v for k, v in new.items() if k not in changed} == {
        k: v for k, v in old.items() if k not in changed
    }
    assert old["dropout"] == new["dropout"]


def test_everything_but_weights_and_optimizer_stays(trained, pruned):
    before, after = checkpoint_files.read(trained["bart"]), checkpoint_files.read(pruned["bart"])
    assert before.keys() - after.keys() == {"last_optimizer_state"}
    for name in after.keys() - {"model", "cfg"}:
        assert after[name] == before[name], name
    for name in after["cfg"].keys() - {"model"}:
        assert str(after["cfg"][name]) == str(before["cfg"][name]), name


def test_shared_tensors_and_half_precision_stay(trained):
    state = checkpoint_files.read(trained["transformer"])
    embeddings = [name for name in state["model"] if "embed_tokens" in name or "output_p" in name]
    halves: dict[int, Tensor] = {}
    for name, tensor in state["model"].items():
        state["model"][name] = halves.setdefault(tensor.data_ptr(), tensor.half())
    path = trained["transformer"].with_name("half.pt")
    torch.save(state, path)
    tensors = torch.load(prune(path))["model"]
    assert {tensor.dtype for tensor in tensors.values()} == {torch.half}
    assert len({tensors[name].data_ptr() for name in embeddings}) == 1 and len(embeddings) == 3
    stored = {t.data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()}
    assert sum(stored.values()) == sum({t.data_ptr(): t.nbytes for t in tensors.values()}.values())


@pytest.mark.parametrize("kind", FORMATS)
def test_neither_state_nor_model_is_changed(kind, trained):
    model, _ = build.checkpoint(trained[kind])
    state = checkpoint_files.read(trained[kind])
    tensors, names, heads = dict(state["model"]), set(model.state_dict()), list_heads(model)
    config = copy.deepcopy(entries(model_config(state)))
    prune_checkpoint(state, parse_heads(HEADS), model)
    assert list(state["model"]) == list(tensors)
    assert all(state["model"][name] is tensor for name, tensor in tensors.items())
    assert "last_optimizer_state" in state and entries(model_config(state)) == config
    assert set(model.state_dict()) == names and list_heads(model) == heads


@pytest.mark.parametrize("kind", MODELS)
def test_pruning_composes(kind, trained, pruned):
    """First some heads, then the others, by the names that they had at first."""
    first = prune(trained[kind], "E:1:1 A:1:3 D:1:2 A:2:1,3", f"first-{kind}.pt")
    second = prune(first, "E:2:1-4 A:1:2 A:2:2,4 D:1:1,3", f"second-{kind}.pt")
    at_once, stepwise = checkpoint_files.read(pruned[kind]), checkpoint_files.read(second)
    assert entries(model_config(stepwise)) == entries(model_config(at_once))
    assert stepwise["model"].keys() == at_once["model"].keys()
    for name, tensor in at_once["model"].items():
        if not name.endswith("_float_tensor"):
            assert torch.equal(stepwise["model"][name], tensor), name


def test_averages_of_training_are_pruned_too(trained):
    model, _ = build.checkpoint(trained["transformer"])
    state = checkpoint_files.read(trained["transformer"])
    state["extra_state"]["ema"] = dict(state["model"])
    after = prune_checkpoint(state, parse_heads(HEADS), model)
    assert after["extra_state"]["ema"].keys() == after["model"].keys()
    assert all(torch.equal(after["extra_state"]["ema"][n], t) for n, t in after["model"].items())
    assert state["extra_state"]["ema"].keys() == state["model"].keys()


def test_optimizers_of_2018_go_too(trained):
    model, _ = build.checkpoint(trained["legacy"])
    state = checkpoint_files.read(trained["legacy"])
    state["optimizer_history"][-1]["optimizer"] = state.pop("last_optimizer_state")
    after = prune_checkpoint(state, parse_heads(HEADS), model)
    assert "optimizer" not in after["optimizer_history"][-1]
    assert after["optimizer_history"][-1]["num_updates"] == 1
    assert "optimizer" in state["optimizer_history"][-1]


@pytest.mark.parametrize(
    "heads, message",
    [("", "no heads to remove"), ("E:1:1", "E:1:1: layer 1 of part E has heads 2-4")],
)
def test_bad_heads(heads, message, pruned):
    with pytest.raises(ValueError, match=message):
        prune(pruned["transformer"], heads)


# --- stock commands -------------------------------------------------------------------------------


def newer(kind: str) -> str:
    """The kind that has the same weights in a format that loads faster."""
    return "transformer" if kind == "legacy" else kind


@pytest.mark.parametrize("kind", FORMATS)
def test_generation_sees_the_masked_model(kind, data, trained, pruned, capsys, tmp_path):
    texts, scores = hypotheses(capsys, data, pruned[kind])
    expected_texts, expected_scores = hypotheses(capsys, data, trained[newer(kind)], *MASKS)
    assert texts == expected_texts and len(texts) == 7
    assert_close(scores, expected_scores, rtol=0, atol=2e-4)  # four digits are printed
    source = tmp_path / "source"
    source.write_text("a b c\nb a\n")
    interactive(data, pruned[kind], "--input", source)
    assert capsys.readouterr().out.count("\nH-") == 2


@pytest.mark.parametrize("kind", FORMATS)
def test_validation_sees_the_masked_model(kind, data, trained, pruned, capsys):
    def loss(path: Path, *task) -> float:
        words = ["--cpu", "--batch-size", 4, "--num-workers", 0, "--log-format", "json"]
        call("validate", data, "--user-dir", PLUGIN, "--path", path, *task, *words)
        return float(re.findall(r'"valid_loss": "(\S+)"', capsys.readouterr().out)[-1])

    expected = loss(trained[newer(kind)], *MASKS)
    assert loss(pruned[kind], "--task", "translation") == pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_masks_of_these_tests_change_much(kind, trained, pruned):
    source, target = torch.tensor([[5, 6, 7, 8, 2]]), torch.tensor([[2, 9, 8, 7]])
    whole, less = (build.checkpoint(paths[kind])[0].eval() for paths in (trained, pruned))
    logits, fewer = (model(source, torch.tensor([5]), target)[0] for model in (whole, less))
    assert (logits - fewer).abs().mean() > 0.1


@pytest.mark.parametrize("kind", MODELS)
def test_the_class_is_the_original_one(kind, trained, pruned):
    model, state = build.checkpoint(pruned[kind])
    assert type(model) is type(build.checkpoint(trained[kind])[0])
    assert state["cfg"].model.pruned_heads == HEADS


@pytest.mark.parametrize("kind", FORMATS)
def test_overrides_reach_the_original(kind, data, pruned):
    overrides = {"dropout": 0.7, "data": str(data)}
    load = checkpoint_utils.load_model_ensemble_and_task
    [model], cfg, _ = load([str(pruned[kind])], overrides)
    assert model.encoder.dropout_module.p == 0.7 == cfg.model.dropout
    assert cfg.model.encoder_layers == 2


# --- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_the_printed_line_trains_on_and_resumes(kind, data, pruned, caplog, capsys):
    """Its checkpoints need no other file."""
    start = prune(pruned[kind], "D:2:1", f"start-{kind}.pt")
    line = fine_tuning_command(start, str(data)).replace("lite_transformer_plugin", PLUGIN)
    command, *words = shlex.split(line)
    saved = data / f"{kind}-on"
    words += ["--cpu", *QUICK, "--save-dir", str(saved), "--no-epoch-checkpoints"]
    assert command == "fairseq-train"
    call("train", *words, "--max-update", 2)
    assert any("loading pretrained model from" in r.message for r in caplog.records)
    start.unlink()
    before = torch.load(saved / LAST)
    call("train", *words, "--max-update", 3)
    after = torch.load(saved / LAST)
    assert [state["optimizer_history"][-1]["num_updates"] for state in (before, after)] == [2, 3]
    assert entries(after["cfg"]["model"])["pruned_heads"] == f"{HEADS} D:2:1"
    assert len(hypotheses(capsys, data, saved / LAST)[0]) == 7
    model, _ = build.checkpoint(prune(saved / LAST, "D:2:3"))
    assert [str(head) for head in list_heads(model, "D")] == ["D:1:4", "D:2:2", "D:2:4"]


@pytest.mark.parametrize("kind", FORMATS)
def test_the_printed_line_repeats_the_settings(kind, data, pruned):
    command, *words = shlex.split(fine_tuning_command(pruned[kind]))
    words = [PLUGIN if word == "lite_transformer_plugin" else word for word in words]
    assert words[0] == "DATA"
    parser = options.get_training_parser()
    found = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
    expected = checkpoint_utils.load_checkpoint_to_cpu(str(pruned[kind]))["cfg"]
    assert found.optimizer.adam_betas == "(0.9, 0.98)" and found.criterion.label_smoothing == 0.1
    for name in ("criterion", "optimizer", "lr_scheduler"):
        assert found[name] == expected[name], name
    for name in ("batch_size", "max_tokens"):
        assert found.dataset[name] == expected.dataset[name]
    assert found.optimization == expected.optimization
    assert {k: v for k, v in found.task.items() if k != "data"} == {
        k: v for k, v in expected.task.items() if k != "data"
    }
    assert found.checkpoint.save_dir == f"{pruned[kind].stem}-fine-tuned"
    old, new = vars(model_config(torch.load(pruned["transformer"]))), vars(found.model)
    if kind == "transformer":
        assert {k: new[k] for k in old.keys() - new.keys()} == {}
        assert new["encoder_layers"] == old["encoder_layers"] == 2


def parsed(path: Path | None, *words) -> Namespace:
    source = [] if path is None else ["--pruned-from", str(path)]
    parser = options.get_training_parser()
    return options.parse_args_and_arch(parser, ["DATA", "--arch", "pruned", *source, *words])


def test_dropout_can_be_chosen_anew(pruned):
    assert parsed(pruned["transformer"]).dropout == 0.1
    args = parsed(pruned["transformer"], "--dropout", "0.4", "--batch-size", "3")
    assert (args.dropout, args.batch_size, args.encoder_layers) == (0.4, 3, 2)
    model = build.from_arguments(args, vocabulary=24)
    assert model.encoder.dropout_module.p == 0.4 and len(list_heads(model)) == 24 - 14


@pytest.mark.parametrize(
    "kind, message",
    [
        (None, "--arch pruned needs --pruned-from CKPT"),
        ("transformer", "has all its heads, fine-tune it with its own --arch transformer"),
        ("missing", "No such file"),
    ],
)
def test_what_there_is_to_train_must_be_a_pruned_checkpoint(kind, message, trained):
    path = trained.get(kind, Path("missing.pt")) if kind else None
    with pytest.raises((ValueError, OSError), match=message):
        parsed(path)


# --- our own commands -----------------------------------------------------------------------------


def test_costs(trained, pruned, capsys):
    before, after = (count(build.checkpoint(p["transformer"])[0]) for p in (trained, pruned))
    layer = 4 * 30 * 16 * 4 + 2 * 30**2 * 4  # of one head of four channels
    for part, share in (("attention", 8), ("cross-attention", 6)):
        assert before.mult_adds_by("part")[part] - after.mult_adds_by("part")[part] == share * layer
    assert profile.main(["--path", str(pruned["transformer"]), "--convention", "paper"]) == 0
    assert "pruned-transformer.pt" in capsys.readouterr().out


def test_pruned_checkpoints_average(data, pruned):
    path, output = pruned["lite_transformer"], data / "average.pt"
    words = ["--inputs", str(path), str(path), "--output", str(output)]
    assert average_checkpoints.main(words) == 0
    model, state = build.checkpoint(output)
    assert len(list_heads(model)) == 24 - 14
    assert all(torch.equal(state["model"][n], t) for n, t in torch.load(path)["model"].items())
