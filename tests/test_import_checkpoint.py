"""`fairseq-import-checkpoint`: equal tokens, equal outputs, stock training; what it refuses."""

import json
import re
import shutil
from pathlib import Path

import hf_folders
import pytest
import torch
from hf_folders import LAYERS, TEXTS, library_tokenizer, make, reference
from safetensors.torch import load_file, save_file
from stock import LAST, call, train
from torch.testing import assert_close

from lite_transformer_plugin import build
from lite_transformer_plugin.cli.import_checkpoint import NAME, main
from lite_transformer_plugin.huggingface.tokenizer import SPECIAL
from lite_transformer_plugin.models.bert import BertModel

KINDS = ["bert", "roberta"]
SIZES = {
    "layers": LAYERS,
    "embed-dim": hf_folders.CHANNELS,
    "ffn-embed-dim": hf_folders.HIDDEN,
    "attention-heads": hf_folders.HEADS,
}


def import_to(output: Path, folder: Path, *words) -> Path:
    output.parent.mkdir(parents=True, exist_ok=True)
    argv = ["--from", "hf-bert", folder, "--output", output, *words]
    assert main(list(map(str, argv))) == 0
    return output


@pytest.fixture(scope="module", params=KINDS)
def imported(request, tmp_path_factory):
    """The kind, its folder in Hugging Face's format, and the model as fairseq gives it to users."""
    folder = tmp_path_factory.mktemp(request.param)
    make(folder / "hf", request.param)
    import_to(folder / "fairseq/model.pt", folder / "hf", "--num-classes", 3)
    return request.param, folder / "hf", BertModel.from_pretrained(str(folder / "fairseq")).eval()


@pytest.mark.parametrize("texts", [TEXTS[:1], TEXTS[::-1]], ids=["single", "pair"])
def test_tokens_and_outputs_are_the_same(texts, imported):
    kind, folder, hub = imported
    expected = library_tokenizer(folder, kind).encode(*texts)
    tokens = hub.encode(*texts)
    words = [hub.task.source_dictionary[i] for i in tokens]
    assert words == [SPECIAL[kind].get(token, token) for token in expected.tokens]
    types = expected.type_ids if kind == "bert" else [0] * len(expected.ids)
    states, pooled = reference(folder, kind, expected.ids, types)
    with torch.no_grad():
        found = hub.extract_features(tokens)
        head = hub.model.classification_heads["sentence_classification_head"]
        found_pooled = head.activation_fn(head.dense(found[:, 0]))
    assert_close(found[0], states, atol=1e-4, rtol=0)
    assert_close(found_pooled[0], pooled, atol=1e-4, rtol=0)


def test_outputs_are_the_same_in_a_padded_batch(imported):
    kind, folder, hub = imported
    library = library_tokenizer(folder, kind)
    batch = torch.full((2, hf_folders.POSITIONS), hub.task.source_dictionary.pad())
    rows = [hub.encode(*TEXTS), hub.encode(TEXTS[0])]
    for row, tokens in zip(batch, rows, strict=True):
        row[: len(tokens)] = tokens
    with torch.no_grad():
        found = hub.extract_features(batch[:, : max(map(len, rows))])
    for texts, row, tokens in zip((TEXTS, TEXTS[:1]), found, rows, strict=True):
        encoded = library.encode(*texts)
        types = encoded.type_ids if kind == "bert" else [0] * len(encoded.ids)
        states = reference(folder, kind, encoded.ids, types)[0]
        assert_close(row[: len(tokens)], states, atol=1e-4, rtol=0)


def test_robertas_ids_stay_and_text_comes_back(imported):
    kind, _, hub = imported
    dictionary = hub.task.source_dictionary
    assert [dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.unk()] == [0, 1, 2, 3]
    assert dictionary.index("<mask>") == len(dictionary) - 1
    text = "a dog on the mat"
    assert hub.decode(hub.encode(text)) == text


def test_every_way_to_store_a_model_gives_the_same_checkpoint(tmp_path):
    folder = make(tmp_path / "plain", "bert")
    first = torch.load(import_to(tmp_path / "a/model.pt", folder))["model"]
    library_tokenizer(folder, "bert").save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").unlink()
    tensors = load_file(folder / "model.safetensors")
    older = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): x for name, x in tensors.items()}
    older["embeddings.position_ids"] = torch.arange(hf_folders.POSITIONS)[None]
    (folder / "model.safetensors").unlink()
    torch.save({f"bert.{name}": x for name, x in older.items()}, folder / "pytorch_model.bin")
    assert_close(torch.load(import_to(tmp_path / "b/model.pt", folder))["model"], first)
    assert (tmp_path / "a/dict.txt").read_bytes() == (tmp_path / "b/dict.txt").read_bytes()


def test_a_classifier_and_masked_words_are_taken(tmp_path):
    folder = make(tmp_path / "hf", "bert")
    tensors = load_file(folder / "model.safetensors")
    words = tensors["embeddings.word_embeddings.weight"]
    more = {
        "classifier.weight": torch.randn(5, 8),
        "classifier.bias": torch.randn(5),
        "cls.predictions.bias": torch.arange(float(len(words))),
        "cls.predictions.decoder.weight": words.clone(),
        "cls.predictions.transform.dense.weight": torch.randn(8, 8),
        "cls.predictions.transform.dense.bias": torch.randn(8),
        "cls.predictions.transform.LayerNorm.weight": torch.randn(8),
        "cls.predictions.transform.LayerNorm.bias": torch.randn(8),
    }
    save_file(tensors | more, folder / "model.safetensors")
    model, _ = build.checkpoint(import_to(tmp_path / "model.pt", folder))
    head = model.classification_heads["sentence_classification_head"]
    assert_close(head.out_proj.weight, more["classifier.weight"], check_dtype=False)
    # [MASK], entry 5, is fairseq's last; [CLS], entry 3, its first
    bias = model.encoder.lm_head.bias
    assert [bias[0].item(), bias[2].item(), bias[4].item(), bias[-1].item()] == [3, 4, 1, 5]
    assert model.encoder.lm_head.weight is model.encoder.sentence_encoder.embed_tokens.weight


# --- stock training -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """An imported BERT and pairs of its words in the form of `sentence_prediction`."""
    folder = tmp_path_factory.mktemp("train")
    import_to(folder / "model.pt", make(folder / "hf", "bert"), "--num-classes", 2)
    lines = {
        "input0": ["the cat sat", "a dog on the mat", "naive words ,"] * 4,
        "input1": ["on a mat", "the dog sat . .", "words"] * 4,
        "label": ["same", "other", "same"] * 4,
    }
    for name, texts in lines.items():
        (folder / name).write_text("".join(f"{text}\n" for text in texts))
        words = ["--srcdict", folder / "dict.txt"] if name != "label" else []
        call(
            "preprocess",
            "--only-source",
            *(f"--{split}pref={folder / name}" for split in ("train", "valid")),
            *("--destdir", folder / "data" / name, "--workers", 1, *words),
        )
    return folder


HOW = [
    *("--arch", "bert", "--task", "sentence_prediction", "--criterion", "sentence_prediction"),
    *("--num-classes", 2, "--init-token", 0, "--max-positions", hf_folders.POSITIONS),
    *("--optimizer", "adam", "--batch-size", 4, "--cpu", "--log-format", "simple"),
    *(word for name, size in SIZES.items() for word in (f"--encoder-{name}", size)),
    *("--layer-norm-eps", hf_folders.EPS["bert"], "--no-epoch-checkpoints", "--max-update", 1),
]


@pytest.mark.parametrize(
    "start", [["--finetune-from-model"], ["--reset-optimizer", "--restore-file"]], ids=str
)
def test_stock_training_starts_from_it(start, corpus, tmp_path):
    train(corpus / "data", tmp_path, *start, corpus / "model.pt", "--lr", 0, how=HOW)
    before, after = (torch.load(p)["model"] for p in (corpus / "model.pt", tmp_path / LAST))
    assert_close(after, before)
    train(corpus / "data", tmp_path / "on", *start, corpus / "model.pt", "--lr", 0.01, how=HOW)
    moved = torch.load(tmp_path / "on" / LAST)["model"]
    name = "encoder.sentence_encoder.embed_segments.weight"
    assert not torch.equal(moved[name][1], before[name][1])  # second sentences reach their segment
    model, _ = build.checkpoint(tmp_path / "on" / LAST)
    assert "sentence_classification_head" in model.classification_heads


# --- refusals -------------------------------------------------------------------------------------


def complaint(capsys, *argv) -> str:
    """The single line of a command that refuses."""
    assert main(list(map(str, argv))) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert output.err.startswith(f"{NAME}: ")
    return output.err


@pytest.fixture
def folder(tmp_path) -> Path:
    return make(tmp_path / "hf", "bert")


def change(folder: Path, **settings) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def without(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


REFUSED = {
    "another kind": (
        lambda folder: change(folder, model_type="gpt2"),
        "has model_type 'gpt2': supported are BERT and RoBERTa encoders",
    ),
    "all that is wrong": (
        lambda folder: change(folder, hidden_act="swish", position_embedding_type="relative_key"),
        "has hidden_act 'swish', position_embedding_type 'relative_key': supported",
    ),
    "another task": (
        lambda folder: change(folder, architectures=["BertForTokenClassification"]),
        "has architecture BertForTokenClassification: supported",
    ),
    "no configuration": (
        lambda folder: (folder / "config.json").unlink(),
        "has no config.json: supported",
    ),
    "no tokeniser": (
        lambda folder: (folder / "vocab.txt").unlink(),
        "has no tokeniser of a bert model: neither tokenizer.json nor vocab.txt",
    ),
    "no special token": (
        lambda folder: (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[SEP]\n[CLS]\nthe\n"),
        r"the tokeniser has no \[MASK\]",
    ),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "has neither model.safetensors nor pytorch_model.bin",
    ),
    "weights cut short": (
        lambda folder: cut(folder / "model.safetensors"),
        "model.safetensors is cut short",
    ),
    "a weight missing": (
        lambda folder: without(folder, "encoder.layer.1.output.dense.bias"),
        "lacks the weight encoder.sentence_encoder.layers.1.fc2.bias",
    ),
    "other sizes": (
        lambda folder: change(folder, hidden_size=10),
        r"has the shape \(8,\), by its config.json it should have \(10,\)",
    ),
    "fewer layers": (
        lambda folder: change(folder, num_hidden_layers=1),
        "its config.json has no place for the weight encoder.sentence_encoder.layers.1",
    ),
    "more words than rows": (
        lambda folder: (folder / "vocab.txt").open("a").write("more\n"),
        "they belong to different models",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused_in_one_line(case, folder, tmp_path, capsys):
    spoil, expected = REFUSED[case]
    spoil(folder)
    output = tmp_path / "model.pt"
    said = complaint(capsys, "--from", "hf-bert", folder, "--output", output)
    assert re.search(expected, said), said
    assert not output.exists() and not (tmp_path / "dict.txt").exists()


def test_a_bin_file_is_read_by_the_safe_loader(folder, tmp_path, capsys):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors | {"path": Path("x")}, folder / "pytorch_model.bin")
    words = ["--from", "hf-bert", folder, "--output", tmp_path / "model.pt"]
    assert "holds more than tensors" in complaint(capsys, *words)
    torch.save(tensors, folder / "pytorch_model.bin")
    cut(folder / "pytorch_model.bin")
    assert "cut short" in complaint(capsys, *words)


def test_nothing_is_overwritten_unasked(folder, tmp_path, capsys):
    import_to(tmp_path / "model.pt", folder)
    capsys.readouterr()
    words = ["--from", "hf-bert", folder, "--output", tmp_path / "model.pt"]
    for name in ("model.pt", "dict.txt", "tokenizer.json"):
        kept = tmp_path / "kept"
        kept.mkdir(exist_ok=True)
        shutil.move(tmp_path / name, kept / name)
        said = complaint(capsys, *words)
        assert "exists: choose another name, or --force" in said
        shutil.move(kept / name, tmp_path / name)
    import_to(tmp_path / "model.pt", folder, "--force")


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--from", "onnx", "."], "--from onnx: the formats known are hf-bert"),
        (["--from", "hf-bert", "nowhere"], "nowhere: there is no such folder"),
        (["--from", "hf-bert", ".", "--num-classes", "0"], r"--num-classes (0) must be 1 or more"),
    ],
)
def test_wrong_arguments(words, expected, tmp_path, capsys):
    assert expected in complaint(capsys, *words, "--output", tmp_path / "model.pt")
