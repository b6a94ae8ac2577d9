"""The experiments on WMT's large model, to the end, on a tiny one written as in 2018."""

import csv
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import randomise
from fairseq.data import Dictionary
from test_head_removal import old_names
from torch import Tensor, nn
from translation_examples import lines, plain, read, script, succeeded, text_steps

from lite_transformer_plugin import build
from lite_transformer_plugin.heads import list_heads

RUN = partial(script, "heads/wmt14.en-fr", "run")
SENTENCES = 6
# What the published checkpoint says of its training, with other sizes.
ARGS = dict(
    arch="transformer_vaswani_wmt_en_fr_big",
    task="translation",
    criterion="label_smoothed_cross_entropy",
    label_smoothing=0.1,
    optimizer="adam",
    adam_betas="(0.9, 0.98)",
    lr=[0.0007],
    lr_scheduler="inverse_sqrt",
    warmup_updates=4000,
    data="/data/wmt14_en_fr",
    source_lang="en",
    target_lang="fr",
    left_pad_source="True",
    left_pad_target="False",
    max_source_positions=1024,
    max_target_positions=1024,
    share_all_embeddings=True,
    share_decoder_input_output_embed=False,
    adaptive_softmax_cutoff=None,
    dropout=0.1,
    attention_dropout=0.1,
    relu_dropout=0.1,
    **{
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in dict(
            embed_dim=16,
            ffn_embed_dim=16,
            layers=1,
            attention_heads=2,
            normalize_before=False,
            learned_pos=False,
            embed_path=None,
        ).items()
    },
)
NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def names_of_2018(entries: dict[str, Tensor]) -> dict[str, Tensor]:
    old = old_names(entries)
    del old["decoder.output_projection.weight"]  # the embeddings
    for side, norms in NORMS.items():
        old[f"{side}.version"] = torch.tensor([3.0])
        for i, norm in enumerate(norms):
            for kind in ("weight", "bias"):
                tensor = old.pop(f"{side}.layers.0.{norm}.{kind}")
                old[f"{side}.layers.0.layer_norms.{i}.{kind}"] = tensor
    return old


def write_checkpoint(path: Path, vocabulary: int) -> nn.Module:
    model = randomise(build.from_arguments(Namespace(**ARGS), vocabulary))
    history = dict(criterion_name="", optimizer_name="FairseqAdam", lr_scheduler_state={})
    state = {
        "args": Namespace(**ARGS),
        "model": names_of_2018(model.state_dict()),
        "optimizer_history": [history | {"num_updates": 9}],
        "extra_state": {"epoch": 2, "batch_offset": 0, "val_loss": 2.5},
        "last_optimizer_state": {},
    }
    torch.save(state, path)
    return model


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> tuple[Path, nn.Module]:
    """A folder as the archive has it, and the model in it; German plays French."""
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    folder = tmp_path_factory.mktemp("published")
    text = [
        text_steps.tokenise(text_steps.normalise(line, language), language)
        for language, ours in (("en", "en"), ("fr", "de"))
        for line in lines("train", ours, 0, 200)
    ]
    with open(folder / "bpecodes", "w") as codes:
        learn_bpe(text, codes, 300)
    with open(folder / "bpecodes") as codes:
        bpe = BPE(codes)
    words = Dictionary()
    for line in text:
        for piece in bpe.segment(line).split():
            words.add_symbol(piece)
    words.finalize()
    for language in ("en", "fr"):
        words.save(str(folder / f"dict.{language}.txt"))
    return folder, write_checkpoint(folder / "model.pt", len(words))


@pytest.fixture
def test_set(tmp_path) -> Path:
    for language, ours in (("en", "en"), ("fr", "de")):
        (tmp_path / f"news.{language}").write_text(plain(lines("test", ours, 0, SENTENCES + 2)))
    return tmp_path / "news"


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_the_checkpoint_is_read_as_it_was_written(published):
    folder, model = published
    found, expected = build.checkpoint(folder / "model.pt")[0].state_dict(), model.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        if not name.endswith("_float_tensor"):
            assert torch.equal(found[name], tensor), name


def test_one_experiment_from_model_to_results(published, test_set, tmp_path):
    folder, model = published
    work = tmp_path / "a folder"
    settings = dict(MODEL=folder, TEST=test_set, WORK=work, SENTENCES=SENTENCES)
    output = succeeded(RUN(**settings, ONLY="one", RATIOS="0,1"))
    assert output.endswith(f"results: {work}\n")
    assert len(read(work / "valid.fr")) == SENTENCES + 2 and "@@" in (work / "valid.fr").read_text()
    assert [path.name for path in sorted(work.iterdir()) if path.is_dir()] == ["data-bin", "one"]
    names = [str(head) for head in list_heads(model)]
    for name in ("importance", "ablation"):
        assert [row["head"] for row in rows(work / f"one/{name}.csv")] == names
        assert (work / f"one/{name}.png").exists()
    assert [row["heads_removed"] for row in rows(work / "one/curve.csv")] == ["0", "6"]


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(ONLY="one two"), "ONLY (two) must be some of: one all-but-one by-importance"),
        (dict(MODEL="/no/such"), "MODEL (/no/such) has no model.pt"),
        (dict(TEST="/no/such"), "TEST: there is no /no/such.en"),
    ],
)
def test_wrong_use(settings, message, published, tmp_path):
    result = RUN(**{"MODEL": published[0], "WORK": tmp_path / "work"} | settings)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("run.sh: ") and message in result.stderr
