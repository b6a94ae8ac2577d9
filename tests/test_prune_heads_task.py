"""`--task prune_heads`: stock commands see the same model as when the weights of heads are zero."""

import argparse
import json
import logging
import re
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils, tasks
from fairseq.models.transformer import TransformerModel
from fairseq.tasks.translation import TranslationTask
from stock import LAST, NO_VALIDATION, PLUGIN, call, generate, interactive, make_data, train
from test_commands import MODEL, TRAIN
from torch import Tensor
from torch.testing import assert_close

from lite_transformer_plugin import build
from lite_transformer_plugin.heads import Head, format_heads, parse_heads
from lite_transformer_plugin.models.pruned import prune_checkpoint
from lite_transformer_plugin.tasks.prune_heads import PruneHeadsConfig, PruneHeadsTask

ARCHS = ("lite_transformer", "transformer")
HEADS = "E:1:3 A:2:1,2 D:1:4"
SIZES = [*MODEL[2:], *(f"--{side}-attention-heads=4" for side in ("encoder", "decoder"))]
MODULES = {
    "E": "encoder.layers.{}.self_attn",
    "A": "decoder.layers.{}.encoder_attn",
    "D": "decoder.layers.{}.self_attn",
}
ALL = [Head(part, layer, head) for part in "EAD" for layer in (1, 2) for head in (1, 2, 3, 4)]
WORKERS = ["--num-workers", "0"]
SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 5, 2, 1, 1]])
TARGET = torch.tensor([[2, 9, 8, 7], [2, 6, 5, 5]])


def train_arch(data: Path, save_dir: Path, arch: str, *words) -> None:
    how = ["--arch", arch, *SIZES, *TRAIN[len(MODEL) :], *WORKERS]
    train(data, save_dir, *words, how=how)


def out_proj(weights: dict, head: Head) -> Tensor:
    """The columns of the output projection that read this head."""
    name = MODULES[head.part].format(head.layer - 1)
    [weight] = [weights[n] for n in weights if re.fullmatch(rf"{name}.*out_proj\.weight", n)]
    return weight.chunk(4, dim=1)[head.head - 1]


def change(path: Path, factors: dict[Head, float]) -> Path:
    """A copy of a checkpoint in which outputs of heads are scaled by their weights."""
    state = torch.load(path)
    for head, factor in factors.items():
        out_proj(state["model"], head).mul_(factor)
    copy = path.with_name(f"{path.stem}-{len(list(path.parent.iterdir()))}.pt")
    torch.save(state, copy)
    return copy


def without(path: Path, heads: str) -> Path:
    return change(path, dict.fromkeys(parse_heads(heads), 0.0))


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """data/, and a checkpoint of each architecture whose heads matter."""
    folder = tmp_path_factory.mktemp("task")
    make_data(folder)
    for arch in ARCHS:
        train_arch(folder / "data", folder / arch, arch, "--max-update", 3, NO_VALIDATION)
        path = folder / arch / LAST
        change(path, dict.fromkeys(ALL, 4.0)).rename(path)
    (folder / "input").write_text("a b c\nh g f e\nd\n")
    return folder


@pytest.fixture(autouse=True)
def log_handlers():
    """fairseq-validate replaces them."""
    before = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = before


@pytest.fixture
def translate(work, capsys):
    """Hypotheses with their scores: fairseq-generate's by default."""

    def translate(checkpoint, *words, command=generate) -> list[str]:
        capsys.readouterr()
        command(work / "data", checkpoint, *WORKERS, *words)
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if line.startswith(("H-", "P-"))]

    return translate


def told(*words: str) -> list[str]:
    return ["--task", "prune_heads", *words]


@pytest.fixture
def output(work):
    """Logits of a checkpoint, loaded as the commands do that build the task from these flags."""

    def output(checkpoint: Path, **flags) -> Tensor:
        task = tasks.setup_task(Namespace(task="prune_heads", data=str(work / "data"), **flags))
        [model], _ = checkpoint_utils.load_model_ensemble([str(checkpoint)], task=task)
        return logits(model)

    return output


def load_as_validated(checkpoint: Path, **overrides) -> torch.nn.Module:
    """As fairseq-validate does, with what its command line says."""
    return checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], overrides)[0][0]


def logits(model: torch.nn.Module) -> Tensor:
    model.eval()
    return model(SOURCE, torch.tensor([5, 3]), TARGET)[0]


def refused(message: str):
    """An error of one line."""
    return pytest.raises(ValueError, match=rf"\A[^\n]*{message}[^\n]*\Z")


# --- translation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_generate(work, arch, translate):
    path = work / arch / LAST
    masked = translate(path, *told("--mask-heads", HEADS))
    assert masked == translate(without(path, HEADS))
    assert len(masked) == 14 and masked != translate(path)


def test_interactive(work, translate):
    path = work / "lite_transformer" / LAST
    words = ["-s", "de", "-t", "en", "--input", work / "input"]
    masked = translate(path, *told("--mask-heads", HEADS), *words, command=interactive)
    assert masked == translate(without(path, HEADS), *words, command=interactive)
    assert len(masked) == 6


def test_every_model_of_an_ensemble(work, translate):
    paths = [work / arch / LAST for arch in ARCHS]
    zeroed = [without(path, HEADS) for path in paths]
    masked = translate(":".join(map(str, paths)), *told("--mask-heads", HEADS))
    assert masked == translate(":".join(map(str, zeroed)))


def test_without_a_mask_it_is_translation(work, translate, caplog):
    path = work / "lite_transformer" / LAST
    assert translate(path, *told()) == translate(path)
    assert "masked" not in caplog.text


@pytest.mark.parametrize("arch", ARCHS)
def test_keep_and_mask_together(work, output, arch):
    path = work / arch / LAST
    masked = output(path, keep_heads="E:1:3 D:2:1,2", mask_heads="E:1:1 A:1:4")
    assert_close(masked, output(without(path, "E:1:1,2,4 D:2:3,4 A:1:4")))


def test_rescale(work, output):
    path = work / "lite_transformer" / LAST
    factors = {Head("E", 1, 1): 4.0} | {Head("E", 1, head): 0.0 for head in (2, 3, 4)}
    masked = output(path, keep_heads="E:1:1", rescale_heads=True)
    assert_close(masked, output(change(path, factors)))
    assert not torch.allclose(masked, output(path, keep_heads="E:1:1"))


def test_what_is_left_of_a_pruned_model(work, output, tmp_path):
    path = work / "transformer" / LAST
    gone = parse_heads("E:1:1,2 D:2:1-4")
    torch.save(prune_checkpoint(torch.load(path), gone, build.checkpoint(path)[0]), tmp_path / LAST)
    masked = output(tmp_path / LAST, keep_heads="E:1:4", mask_heads="A:1:1")
    assert_close(masked, output(path, mask_heads="E:1:1-3 D:2:1-4 A:1:1"))
    with refused("E:1:2: .*has heads 3,4"):
        output(tmp_path / LAST, mask_heads="E:1:2")


def test_the_log_says_what_is_masked(work, output, caplog):
    caplog.set_level(logging.INFO)
    output(work / "transformer" / LAST, mask_heads="A:1:2,1 A:2:1-4")
    assert "masked 6 of 24 heads: A:1:1,2 A:2:1-4" in caplog.text
    assert "nothing reads the source" not in caplog.text
    output(work / "transformer" / LAST, mask_heads="A:1:1-4 A:2:1-4")
    assert "nothing reads the source" in caplog.text


def test_a_model_loaded_in_python(work):
    def loaded(path: Path, **options) -> Tensor:
        data = str(work / "data")
        hub = TransformerModel.from_pretrained(str(path.parent), path.name, data, **options)
        return logits(hub.models[0])

    path = work / "transformer" / LAST
    masked = loaded(path, task="prune_heads", mask_heads=HEADS)
    assert_close(masked, loaded(without(path, HEADS)))
    assert not torch.allclose(masked, loaded(path))


# --- share of the least important -----------------------------------------------------------------


def importance(folder: Path, scores: dict[Head, float], **around) -> str:
    rows = [{"head": str(head), "importance": score} for head, score in scores.items()]
    path = folder / "importance.json"
    path.write_text(json.dumps(around | {"importance": rows} if around else rows))
    return str(path)


def test_share_of_the_least_important(work, tmp_path, output):
    path = work / "transformer" / LAST
    file = importance(tmp_path, {head: -i for i, head in enumerate(ALL)}, unit="sentence")
    masked = output(path, head_importance=file, prune_ratio=0.3)
    assert_close(masked, output(without(path, format_heads(ALL[-8:]))))
    assert_close(output(path, head_importance=file, prune_ratio=0.0), output(path))


def test_share_of_some_parts_with_heads_left_in_each_layer(work, tmp_path, translate, output):
    path = work / "transformer" / LAST
    file = importance(tmp_path, {head: i for i, head in enumerate(ALL)})
    masked = output(path, head_importance=file, head_parts="A,E", prune_ratio=0.3)
    assert_close(masked, output(without(path, "E:1:1-4 E:2:1")))
    share = told("--head-importance", file, "--head-parts", "A,E", "--prune-ratio", ".3")
    masked = translate(path, *share, "--min-heads-per-layer", "2")
    assert masked == translate(without(path, "E:1:1,2 E:2:1,2 A:1:1"))


# --- validation -----------------------------------------------------------------------------------


def validate(data: Path, checkpoint: Path, *words) -> list[float]:
    """Losses of the batches in fairseq-validate, which must read these data."""
    losses, folders, stock = [], set(), TranslationTask.valid_step

    def valid_step(task, sample, model, criterion):
        folders.add(task.cfg.data)
        loss, size, logged = stock(task, sample, model, criterion)
        losses.append(float(loss))
        return loss, size, logged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationTask, "valid_step", valid_step)
        words = ["--path", checkpoint, "--batch-size", 4, "--cpu", *WORKERS, *words]
        call("validate", data, "--user-dir", PLUGIN, *words)
    assert folders == {str(data)} and len(losses) == 3
    return losses


def overrides(**task) -> list[str]:
    return ["--task", "translation", "--model-overrides", str({"task": task})]


WAYS = {
    "flags": told("--mask-heads", HEADS),
    "overrides": overrides(_name="prune_heads", mask_heads=HEADS),
    "flags and overrides": told("--model-overrides", str({"mask_heads": HEADS})),
}


@pytest.fixture(scope="module")
def legacy(work) -> Path:
    """A checkpoint as fairseq wrote them before 2021, with a flat namespace."""
    state = torch.load(work / "transformer" / LAST)
    cfg, flat = state.pop("cfg"), {}
    for group in filter(None, cfg.values()):
        flat |= vars(group) if isinstance(group, Namespace) else group
    names = {name: cfg[name]["_name"] for name in ("task", "criterion", "optimizer")}
    state["args"] = Namespace(**flat | names | {"arch": "transformer"})
    torch.save(state, work / "legacy.pt")
    return work / "legacy.pt"


@pytest.fixture(scope="module")
def elsewhere(work, tmp_path_factory) -> Path:
    """The data are not where they were in training."""
    return shutil.copytree(work / "data", tmp_path_factory.mktemp("elsewhere") / "data")


def test_validate(work, elsewhere):
    path = work / "transformer" / LAST
    expected = validate(work / "data", without(path, HEADS), "--task", "translation")
    assert expected != validate(work / "data", path, "--task", "translation")
    for way in WAYS.values():
        assert_close(validate(elsewhere, path, *way), expected)


def test_validate_a_checkpoint_of_old(work, legacy, output):
    expected = output(work / "transformer" / LAST, mask_heads=HEADS)
    flags = {"task": "prune_heads", "mask_heads": HEADS}
    for told in (flags, {"task": {"_name": "prune_heads", "mask_heads": HEADS}}):
        assert_close(logits(load_as_validated(legacy, **told)), expected)


def test_validate_takes_every_option(work, tmp_path):
    path = work / "transformer" / LAST
    file = importance(tmp_path, {head: i for i, head in enumerate(ALL)})
    share = ["--prune-ratio", ".25", "--head-importance", file, "--head-parts", "D"]
    least = ["--rescale-heads", "--min-heads-per-layer", "3"]
    factors = dict.fromkeys(ALL[16:], 4 / 3) | {ALL[16]: 0.0, ALL[20]: 0.0}
    expected = validate(work / "data", change(path, factors), "--task", "translation")
    assert_close(validate(work / "data", path, *told(*share, *least)), expected)


# --- training -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(work, tmp_path_factory):
    """checkpoint_1_1.pt and checkpoint_1_2.pt, after updates under a mask."""
    folder = tmp_path_factory.mktemp("trained")

    def trained(arch: str) -> Path:
        if not (folder / arch).exists():
            words = ["--save-interval-updates", 1, "--max-update", 2, NO_VALIDATION]
            train_arch(work / "data", folder / arch, arch, *told("--mask-heads", HEADS), *words)
        return folder / arch

    return trained


@pytest.mark.parametrize("arch", ARCHS)
def test_masked_heads_do_not_learn(arch, trained):
    one, two = (torch.load(trained(arch) / f"checkpoint_1_{n}.pt")["model"] for n in (1, 2))
    masked = parse_heads(HEADS)
    for head in ALL:
        assert torch.equal(out_proj(one, head), out_proj(two, head)) == (head in masked)


def test_a_checkpoint_keeps_the_flags_but_the_command_line_decides(trained, output):
    path = trained("transformer") / LAST
    assert torch.load(path)["cfg"]["task"]["mask_heads"] == HEADS
    assert_close(output(path), output(change(path, {})))
    assert not torch.allclose(output(path), output(without(path, HEADS)))


def test_validation_masks_as_in_training_unless_it_is_told(trained, output):
    def as_validated(**overrides) -> Tensor:
        return logits(load_as_validated(path, **overrides))

    path = trained("transformer") / LAST
    for overrides in ({}, {"task": "translation"}, {"task": "prune_heads"}):
        assert_close(as_validated(**overrides), output(path, mask_heads=HEADS))
    kept = output(path, keep_heads="E:1:1")
    assert_close(as_validated(keep_heads="E:1:1"), kept)
    assert_close(as_validated(task="prune_heads", keep_heads="E:1:1"), kept)
    assert_close(as_validated(task={"keep_heads": "E:1:1"}), kept)
    assert_close(as_validated(task={"_name": "translation"}), output(path))
    assert not torch.allclose(kept, output(path, mask_heads=HEADS))


def test_resuming_without_the_flags_trains_all_heads(work, trained, tmp_path):
    shutil.copy(trained("transformer") / LAST, tmp_path)
    words = ["--max-update", 3, NO_VALIDATION]
    before = torch.load(tmp_path / LAST)
    train_arch(work / "data", tmp_path, "transformer", *told(), *words)
    after = torch.load(tmp_path / LAST)
    assert after["cfg"]["task"]["mask_heads"] is None
    for head in parse_heads(HEADS):
        assert not torch.equal(out_proj(before["model"], head), out_proj(after["model"], head))


def test_bleu_in_training_is_of_the_masked_model(work):
    """The generator for --eval-bleu is made before the mask."""
    path, found = work / "transformer" / LAST, []
    sample = {"net_input": {"src_tokens": SOURCE[:1], "src_lengths": torch.tensor([5])}}
    bleu = dict(eval_bleu=True, eval_bleu_args='{"beam": 2, "max_len_b": 10}')
    for checkpoint, heads in ((path, HEADS), (without(path, HEADS), None), (path, None)):
        state = torch.load(checkpoint)
        flags = Namespace(task="prune_heads", data=str(work / "data"), mask_heads=heads, **bleu)
        task = tasks.setup_task(flags)
        model = task.build_model(state["cfg"]["model"])
        model.load_state_dict(state["model"])
        [best] = task.inference_step(task.sequence_generator, [model.eval()], sample)
        found.append([(h["tokens"].tolist(), round(h["score"].item(), 4)) for h in best])
    assert found[0] == found[1] != found[2]


# --- bad input ------------------------------------------------------------------------------------

SHARE = ("--prune-ratio", "0.5")
FILE = ("--head-importance", "importance.json")
BAD_FLAGS = {
    ("--mask-heads", ""): "--mask-heads is empty: a mask must name at least one head",
    ("--keep-heads", " "): "--keep-heads is empty",
    ("--mask-heads", "E:1"): "--mask-heads: 'E:1' is no head",
    ("--keep-heads", "X:1:1"): "--keep-heads: 'X:1:1': there is no part 'X'",
    ("--mask-heads", HEADS, "--keep-heads", "E:1:1-3 D:1:4"): "E:1:3 D:1:4 is in both",
    ("--rescale-heads",): "--rescale-heads needs --mask-heads, --keep-heads or --prune-ratio",
    FILE: "--head-importance goes with --prune-ratio",
    ("--min-heads-per-layer", "0"): "--min-heads-per-layer goes with --prune-ratio",
    ("--mask-heads", "E:1:1", "--head-parts", "E"): "--head-parts goes with --prune-ratio",
    SHARE: "--prune-ratio needs --head-importance FILE",
    (*SHARE, *FILE, "--mask-heads", "E:1:1"): "give either --prune-ratio or --mask-heads",
    (*SHARE, *FILE, "--keep-heads", ""): "give either --prune-ratio or --mask-heads",
    ("--prune-ratio", "1.5", *FILE): r"--prune-ratio \(1.5\) must be between 0 and 1",
    ("--prune-ratio", "-0.1", *FILE): r"--prune-ratio \(-0.1\) must be between 0 and 1",
    ("--prune-ratio", "nan", *FILE): r"--prune-ratio \(nan\) must be between 0 and 1",
    (*SHARE, *FILE, "--min-heads-per-layer", "-1"): r"--min-heads-per-layer \(-1\) must not",
    (*SHARE, *FILE, "--head-parts", "E,B"): "--head-parts: there is no part 'B'",
    (*SHARE, *FILE, "--head-parts", ""): "--head-parts: there is no part ''",
    (*SHARE, "--head-importance", "none.json"): "none.json: No such file",
    (*SHARE, "--head-importance", "."): "--head-importance .: Is a directory",
    (*SHARE, "--head-importance", "text.json"): "text.json is not JSON",
    (*SHARE, "--head-importance", "other.json"): "other.json holds no list of importance",
}


def flags_of(words) -> dict:
    """What a command makes of them."""
    parser = argparse.ArgumentParser()
    PruneHeadsTask.add_args(parser)
    return vars(parser.parse_args(["no-data", *words]))


@pytest.mark.parametrize("words, message", BAD_FLAGS.items(), ids=map(" ".join, BAD_FLAGS))
def test_flags_that_do_not_fit_stop_before_the_data(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    importance(tmp_path, dict.fromkeys(ALL, 0.5))
    Path("text.json").write_text("head,importance\n")
    Path("other.json").write_text('{"importance": {"E:1:1": 0.5}}')
    with refused(message):
        tasks.setup_task(Namespace(task="prune_heads", **flags_of(words)))


@pytest.mark.parametrize("command", ["generate", "interactive", "validate", "train"])
def test_flags_that_do_not_fit_stop_every_command(work, tmp_path, command):
    path = work / "transformer" / LAST
    words = ["--cpu", "--batch-size", 1, *told("--mask-heads", "", "--user-dir", PLUGIN)]
    own = {"train": ["--arch", "transformer", "--save-dir", tmp_path, "--optimizer", "adam"]}
    with refused("--mask-heads is empty"):
        call(command, work / "data", *words, *own.get(command, ["--path", path]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("head, has", [("E:3:1", "in layers 1,2"), ("D:2:5", "has heads 1-4")])
@pytest.mark.parametrize("flag", ["mask_heads", "keep_heads"])
def test_heads_that_the_model_has_not(work, output, flag, head, has):
    with refused(f"{head}: .*{has}"):
        output(work / "transformer" / LAST, **{flag: head})


OTHERS = {
    "importance file of another model: .* E:1:1": ALL[1:],
    "importance file of another model: E:3:1": [*ALL, Head("E", 3, 1)],
}


@pytest.mark.parametrize("message, heads", OTHERS.items())
def test_importance_of_another_model(work, output, tmp_path, heads, message):
    file = importance(tmp_path, dict.fromkeys(heads, 0.5))
    with refused(f"importance.json: {message}"):
        output(work / "lite_transformer" / LAST, prune_ratio=0.5, head_importance=file)


def test_too_many_heads_a_layer(work, output, tmp_path):
    file = importance(tmp_path, dict.fromkeys(ALL, 0.5))
    flags = dict(prune_ratio=0.5, min_heads_per_layer=3, head_importance=file)
    with refused("the largest share is 0.25"):
        output(work / "lite_transformer" / LAST, **flags)


# --- a mask is never dropped without a word -------------------------------------------------------

DROPPED = [
    {"task": {"_name": "prune_heads", "mask_heads": HEADS}},
    {"task": {"mask_heads": HEADS}},
    {"mask_heads": HEADS},
    {"rescale_heads": True},
]


@pytest.mark.parametrize("given", DROPPED, ids=str)
@pytest.mark.parametrize("name", ["translation", "prune_heads"])
def test_overrides_do_not_reach_a_task_of_the_command_line(work, given, name):
    task = tasks.setup_task(Namespace(task=name, data=str(work / "data")))
    with refused("overrides do not reach the task of this command"):
        checkpoint_utils.load_model_ensemble([str(work / "transformer" / LAST)], given, task)


@pytest.mark.parametrize("command", [generate, interactive])
def test_such_overrides_stop_the_command(work, translate, command):
    words = ["-s", "de", "-t", "en", "--model-overrides", str(DROPPED[0])]
    with refused("overrides do not reach the task of this command"):
        translate(work / "transformer" / LAST, *words, command=command)


@pytest.mark.parametrize("given", DROPPED[1:], ids=str)
def test_an_option_needs_its_task(work, given):
    for told in (given, {"task": "translation"} | given):
        with refused("task translation has no option '(mask|rescale)_heads'"):
            load_as_validated(work / "transformer" / LAST, **told)


def test_an_option_needs_its_task_in_a_checkpoint_of_old(legacy):
    with refused("task translation has no option 'mask_heads'.* --task prune_heads"):
        load_as_validated(legacy, mask_heads=HEADS)


def test_a_misspelt_option(work, trained):
    with refused("the task prune_heads has no option 'mask_head'"):
        path = work / "transformer" / LAST
        load_as_validated(path, task={"_name": "prune_heads", "mask_head": HEADS})
    with refused("the task prune_heads has no option 'mask_head'"):
        load_as_validated(trained("transformer") / LAST, task={"mask_head": HEADS})


@pytest.mark.parametrize("command", ["generate", "interactive", "validate", "train"])
def test_the_flags_need_the_task(work, command, capsys):
    words = ["--user-dir", PLUGIN, "--task", "translation", "--mask-heads", HEADS]
    words += ["--arch", "transformer"] if command == "train" else ["--path", "no-checkpoint.pt"]
    with pytest.raises(SystemExit):
        call(command, work / "data", *words)
    assert "unrecognized arguments: --mask-heads" in capsys.readouterr().err


def test_eval_lm_does_not_translate(work):
    path = work / "transformer" / LAST
    words = [work / "data", "--user-dir", PLUGIN, "--path", path, "--cpu"]
    with pytest.raises(AttributeError, match="PruneHeadsTask.*eval_lm_dataloader"):
        call("eval_lm", *words, *told("--mask-heads", HEADS))


@pytest.mark.parametrize("command", ["generate", "interactive", "validate", "train"])
def test_help_lists_the_flags(command, capsys):
    with pytest.raises(SystemExit):
        call(command, "--user-dir", PLUGIN, *told("--help"))
    shown = "".join(capsys.readouterr().out.split())
    for name in set(vars(PruneHeadsConfig)["__annotations__"]):
        help_text = PruneHeadsConfig.__dataclass_fields__[name].metadata["help"]
        assert "--" + name.replace("_", "-") in shown
        assert "".join(help_text.split()) in shown
