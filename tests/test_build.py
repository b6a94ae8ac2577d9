"""Architectures and checkpoints without data."""

from argparse import Namespace

import pytest
import torch
from omegaconf import OmegaConf

from lite_transformer_plugin import build

SMALL = ["--encoder-embed-dim", "16", "--encoder-layers", "1", "--decoder-layers", "1"]


def save(path, model, model_cfg, **changes):
    """A checkpoint with what fairseq's trainer writes and its loader reads."""
    state = {
        "args": None,
        "cfg": {"_name": None, "model": model_cfg},
        "model": model.state_dict(),
        "optimizer_history": [{"optimizer_name": "Adam", "lr_scheduler_state": {}}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "task_state": {},
    }
    torch.save(state | changes, path)
    return path


def small(arch, words=(30, 40), flags=SMALL, **more):
    args = build.arguments(arch, flags)
    for name, value in more.items():
        setattr(args, name, value)
    torch.manual_seed(1)
    return build.build_model(Namespace(**vars(args)), build.task_of(*words)), args


def test_a_vocabulary_counts_the_special_symbols():
    assert len(build.dictionary(5)) == 5
    for words in (4, 0, -1):
        with pytest.raises(ValueError, match="at least 5"):
            build.dictionary(words)


def test_flags_reach_the_architecture():
    args = build.arguments("lite_transformer_iwslt_de_en_160", ["--encoder-layers", "2"])
    assert (args.encoder_layers, args.encoder_embed_dim, args.dropout) == (2, 160, 0.2)


def test_near_names_are_offered_for_an_unknown_architecture():
    with pytest.raises(ValueError, match="lite_transformer_wmt_en_de_200"):
        build.arguments("lite_transformer_wmt_en_de_20")
    with pytest.raises(ValueError, match="--user-dir"):
        build.arguments("xyzzy")


def test_an_unknown_flag_is_named():
    with pytest.raises(ValueError, match="--encoder-embd-dim"):
        build.arguments("transformer", ["--encoder-embd-dim", "16"])


def test_sizes_that_do_not_fit_are_explained_in_one_line():
    with pytest.raises(ValueError, match="cannot build lite_transformer.*must be even") as caught:
        build.architecture("lite_transformer", 20, ["--encoder-embed-dim", "15"])
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="vocabulary of 100: cannot specify cutoff larger"):
        build.architecture("transformer_lm_wiki103", 100)


@pytest.mark.parametrize("arch", ["transformer", "lite_transformer", "roberta_base"])
def test_a_model_without_weights_has_the_sizes_of_one_with(arch):
    flags = SMALL[:4] + ["--encoder-attention-heads", "4"]
    full, empty = (build.architecture(arch, 30, flags, weights) for weights in (True, False))
    sizes = [{name: p.shape for name, p in m.named_parameters()} for m in (full, empty)]
    assert sizes[0] == sizes[1]


LM = ["--decoder-layers", "1", "--decoder-embed-dim", "64", "--decoder-ffn-embed-dim", "8"]
CUTOFFS = ["--adaptive-input-cutoff", "10,20", "--adaptive-softmax-cutoff", "10,20"]


@pytest.mark.parametrize(
    "arch, words, flags",
    [
        ("transformer", (30, 40), SMALL),
        ("lite_transformer_iwslt_de_en_160", (30, 40), SMALL),
        ("lightconv_iwslt_de_en", (30, 40), ["--encoder-embed-dim", "16"]),
        ("lite_transformer", (30, 30), [*SMALL, "--share-all-embeddings"]),
        ("transformer_lm_wiki103", (45, 45), LM + CUTOFFS),
        ("roberta_base", (30, 30), SMALL[:4] + ["--encoder-attention-heads", "4"]),
    ],
)
def test_a_checkpoint_is_rebuilt_without_its_data(arch, words, flags, tmp_path):
    model, args = small(arch, words, flags)
    path = save(tmp_path / "m.pt", model, args)
    rebuilt, state = build.checkpoint(path)
    assert type(rebuilt) is type(model)
    for (name, old), (other, new) in zip(
        model.state_dict().items(), rebuilt.state_dict().items(), strict=True
    ):
        assert name == other
        # NaN: fairseq's dynamic convolution saves a bias that it never fills or uses
        torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True)
    assert set(state["model"]) == set(model.state_dict())


def test_a_checkpoint_of_the_old_kind_is_rebuilt(tmp_path):
    model, args = small("transformer")
    path = save(tmp_path / "m.pt", model, None, args=args, cfg=None)
    rebuilt, _ = build.checkpoint(path)
    assert rebuilt.encoder.embed_tokens.weight.shape == (30, 16)
    assert rebuilt.decoder.embed_tokens.weight.shape == (40, 16)


def test_pretrained_embeddings_need_not_be_there_any_more(tmp_path):
    model, args = small("transformer")
    args.encoder_embed_path = str(tmp_path / "gone.vec")
    build.checkpoint(save(tmp_path / "m.pt", model, args))


def test_a_classification_head_is_rebuilt_too(tmp_path):
    flags = SMALL[:4] + ["--encoder-attention-heads", "4"]
    model, args = small("roberta_base", (30, 30), flags)
    model.register_classification_head("pairs", num_classes=3)
    rebuilt, _ = build.checkpoint(save(tmp_path / "m.pt", model, args))
    assert rebuilt.classification_heads["pairs"].out_proj.out_features == 3


class Foreign:
    """Nothing a fairseq checkpoint holds."""


def test_other_files_are_refused_in_one_line(tmp_path):
    model, args = small("transformer")
    whole = save(tmp_path / "whole.pt", model, args).read_bytes()
    files = {"cut": whole[: len(whole) // 2], "text": b"hello", "empty": b""}
    for name, content in files.items():
        (tmp_path / f"{name}.pt").write_bytes(content)
    others = {"tensor": torch.zeros(2), "weights": model.state_dict(), "foreign": Foreign()}
    for name, content in others.items():
        torch.save(content, tmp_path / f"{name}.pt")
    for name in [*files, *others]:
        with pytest.raises(ValueError) as caught:
            build.checkpoint(tmp_path / f"{name}.pt")
        assert f"{name}.pt" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="test_build.Foreign"):
        build.checkpoint(tmp_path / "foreign.pt")
    with pytest.raises(FileNotFoundError, match="not there"):
        build.checkpoint(tmp_path / "missing.pt")
    with pytest.raises(FileNotFoundError, match="a folder"):
        build.checkpoint(tmp_path)


def test_a_checkpoint_of_other_sizes_is_refused(tmp_path):
    model, args = small("transformer")
    args.encoder_ffn_embed_dim = 8
    path = save(tmp_path / "m.pt", model, args)
    with pytest.raises(ValueError, match="cannot rebuild.*size mismatch") as caught:
        build.checkpoint(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no word embeddings"):
        build.checkpoint(save(path, torch.nn.Linear(2, 2), args))


def test_a_hydra_checkpoint_is_rebuilt(tmp_path):
    model, args = small("lite_transformer", (30, 30))
    fields = {name: value for name, value in vars(args).items() if "embed" in name}
    cfg = OmegaConf.create({**fields, "_name": "lite_transformer", "encoder_layers": 1})
    cfg.decoder_layers = 1
    build.checkpoint(save(tmp_path / "m.pt", model, OmegaConf.to_container(cfg)))
