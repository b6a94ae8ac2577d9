"""`--task prune_heads`: stock commands see the same model as when the weights of heads are zero."""

import logging
import shutil
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
import torch
from fairseq import tasks
from fairseq.models.transformer import TransformerModel
from masked_checkpoints import (
    ALL,
    ARCHS,
    HEADS,
    SOURCE,
    WORKERS,
    change,
    logits,
    make_work,
    out_proj,
    output_of,
    refused,
    told,
    train_arch,
    train_masked,
    without,
    write_importance,
)
from stock import LAST, NO_VALIDATION, generate, interactive
from torch import Tensor
from torch.testing import assert_close

from lite_transformer_plugin import build
from lite_transformer_plugin.heads import Head, format_heads, parse_heads
from lite_transformer_plugin.models.pruned import prune_checkpoint


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return make_work(tmp_path_factory.getbasetemp())


@pytest.fixture
def output(work):
    return partial(output_of, work / "data")


@pytest.fixture
def translate(work, capsys):
    """Hypotheses with their scores: fairseq-generate's by default."""

    def translate(checkpoint, *words, command=generate) -> list[str]:
        capsys.readouterr()
        command(work / "data", checkpoint, *WORKERS, *words)
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if line.startswith(("H-", "P-"))]

    return translate


# --- translation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_generate(work, arch, translate):
    path = work / arch / LAST
    masked = translate(path, *told("--mask-heads", HEADS))
    assert masked == translate(without(path, HEADS))
    assert len(masked) == 14 and masked != translate(path)


def test_interactive(work, translate, tmp_path):
    path = work / "lite_transformer" / LAST
    (tmp_path / "input").write_text("a b c\nh g f e\nd\n")
    words = ["-s", "de", "-t", "en", "--input", tmp_path / "input"]
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


def test_share_of_the_least_important(work, tmp_path, output):
    path = work / "transformer" / LAST
    file = write_importance(tmp_path, {head: -i for i, head in enumerate(ALL)}, unit="sentence")
    masked = output(path, head_importance=file, prune_ratio=0.3)
    assert_close(masked, output(without(path, format_heads(ALL[-8:]))))
    assert_close(output(path, head_importance=file, prune_ratio=0.0), output(path))


def test_share_of_some_parts_with_heads_left_in_each_layer(work, tmp_path, translate, output):
    path = work / "transformer" / LAST
    file = write_importance(tmp_path, {head: i for i, head in enumerate(ALL)})
    masked = output(path, head_importance=file, head_parts="A,E", prune_ratio=0.3)
    assert_close(masked, output(without(path, "E:1:1-4 E:2:1")))
    share = told("--head-importance", file, "--head-parts", "A,E", "--prune-ratio", ".3")
    masked = translate(path, *share, "--min-heads-per-layer", "2")
    assert masked == translate(without(path, "E:1:1,2 E:2:1,2 A:1:1"))


# --- training -------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path_factory):
    return partial(train_masked, tmp_path_factory.getbasetemp())


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
