"""The scripts of the summarisation examples as a user runs them, and their text steps."""

import shlex

from translation_examples import (
    CNN_DM,
    ONE_LAYER,
    SUMMARIES,
    configuration,
    read,
    results,
    script,
    succeeded,
    text_steps,
    write_cnn_dm,
)

FEW = ["--max-update", 2, "--update-freq", 1, "--max-tokens", 2000]


def test_tags_are_taken_away():
    assert text_steps.untagged("<t> the cat sat . </t> <t> it < ran . </t>") == (
        "the cat sat . it < ran ."
    )


def test_only_a_source_is_cut():
    steps = dict(
        language="en", normalise=False, straighten=False, split_dashes=False, lowercase=False
    )
    pair = ("one two, three", "one two, three")
    found = text_steps.to_tokens(pair, ("source", "target"), steps | {"longest_source": 3}, True)
    assert found == ("one two ,", "one two , three")


def test_cnn_dailymail_from_corpus_to_score(tmp_path):
    work = tmp_path / "work"
    data = write_cnn_dm(tmp_path / "data")
    succeeded(script(CNN_DM, "prepare", DATA=data, WORK=work, WORKERS=1, BPE_MERGES=800))
    assert read(work / "raw/test.target")[0][:3] != "<t>"
    assert len(read(work / "pieces/valid.source")) == 8
    succeeded(script(CNN_DM, "train", *FEW, *ONE_LAYER, WORK=work))
    output = succeeded(script(CNN_DM, "evaluate", "--max-len-b", 60, WORK=work))
    assert "summaries" in output and "the first 3 sentence(s) instead" in output
    result = results(work, "lite_transformer_cnn_dm", "test.best")
    assert result["sentences"] == 8
    assert set(result["rouge"]) == set(result["lead"]) == {"rouge1", "rouge2", "rougeLsum"}


def test_settings(tmp_path):
    """The authors' for CNN/DM, and the two small summarisers."""
    (tmp_path / "data-bin").mkdir()
    found = {}
    for example, model in ((CNN_DM, "transformer"), (SUMMARIES, "transformer")):
        settings = dict(WORK=tmp_path, MODEL=model, DRY_RUN=1)
        line = succeeded(script(example, "train", **settings)).splitlines()[-1]
        found[example] = configuration(shlex.split(line))
    assert found[CNN_DM].lr_scheduler._name == "cosine"
    assert found[CNN_DM].optimization.lr == [0.001]
    assert found[CNN_DM].model._name == "transformer_wmt_en_de"
    assert found[SUMMARIES].model.encoder_embed_dim == 104


def test_texts_and_summaries_of_different_lengths(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "valid", "test"):
        (data / f"{split}.source").write_text("one text\nanother text\n")
        (data / f"{split}.target").write_text("a summary\n")
    result = script(SUMMARIES, "prepare", DATA=data, WORK=tmp_path / "work")
    assert result.returncode == 1
    assert "differ in their number of sentences" in result.stderr.splitlines()[-1]
