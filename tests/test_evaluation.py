"""Translations are fairseq-generate's to the last bit, of a whole split or of a subset."""

import copy
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import FairseqTask
from stock import LAST, NO_VALIDATION, generate, preprocess, train
from test_commands import write_corpus

from lite_transformer_plugin.batches import choose
from lite_transformer_plugin.evaluation import Translations, Translator, share
from lite_transformer_plugin.heads import masked, parse_heads
from lite_transformer_plugin.scoring import Bleu

COUNTS = {"train": 120, "valid": 30, "test": 27}
SEARCH = ["--beam", "3", "--max-len-b", "10", "--batch-size", "8", "--cpu", "--num-workers", "0"]


@cache
def make_work(session: Path) -> Path:
    """data/, and saved/checkpoint_last.pt, whose heads matter; once for all tests of a session."""
    folder = session / "evaluation"
    folder.mkdir()
    for seed, (name, count) in enumerate(COUNTS.items()):
        write_corpus(folder, name, count, seed)
    preprocess(folder / "data", *(f"--{name}pref={folder / name}" for name in COUNTS))
    train(folder / "data", folder / "saved", "--max-update", 60, NO_VALIDATION)
    state = torch.load(folder / "saved" / LAST)
    for name, weight in state["model"].items():
        if name.endswith("out_proj.weight"):
            weight.mul_(4)
    torch.save(state, folder / "saved" / LAST)
    return folder


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return make_work(tmp_path_factory.getbasetemp())


def config(data: Path, checkpoint: Path, *words: str):
    """What fairseq-generate makes of its command line."""
    argv = [str(data), "--path", str(checkpoint), *SEARCH, *words]
    return convert_namespace_to_omegaconf(
        options.parse_args_and_arch(options.get_generation_parser(), argv)
    )


@cache
def load(work: Path, *words: str):
    """Task, model and configuration, as fairseq-generate has them before it translates."""
    cfg = config(work / "data", work / "saved" / LAST, *words)
    task = tasks.setup_task(cfg.task)
    [model], _ = checkpoint_utils.load_model_ensemble([cfg.common_eval.path], task=task)
    if cfg.common.fp16:
        model.half()
    model.prepare_for_inference_(cfg)
    return task, model, cfg


def translator(work: Path, *words: str, split: str = "test", **settings) -> Translator:
    return Translator(*load(work, *words), split, **settings)


def lines(found: Translations) -> dict[str, str]:
    """H- and D- lines as fairseq-generate prints them."""
    rows = zip(*found, strict=True)
    pairs = (
        ((f"H-{number}", f"{score}\t{tokens}"), (f"D-{number}", f"{score}\t{text}"))
        for number, tokens, text, score in rows
    )
    return dict(pair for both in pairs for pair in both)


@pytest.fixture
def printed(work, capsys):
    """The lines of fairseq-generate by their names."""

    def printed(*words, names: str = "HD") -> dict[str, str]:
        capsys.readouterr()
        generate(work / "data", work / "saved" / LAST, *SEARCH, *words)
        output = capsys.readouterr().out
        return dict(re.findall(rf"^([{names}]-\d+)\t(.*)$", output, re.MULTILINE))

    return printed


# --- translations ---------------------------------------------------------------------------------

FLAGS = {
    "plain": [],
    "other search": "--lenpen 0.3 --min-len 3 --no-repeat-ngram-size 2 --prefix-size 2".split(),
    "greedy, in other batches": "--beam 1 --batch-size 100 --max-tokens 40".split(),
    "half precision, aligned": "--fp16 --print-alignment hard".split(),
}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_translations_are_those_of_generate(work, printed, flags):
    found = translator(work, *flags).translate()
    assert len(set(found.texts)) > 5  # else a mistake in their order would not be seen
    assert lines(found) == printed(*flags)
    assert not flags or found.scores != translator(work).translate().scores


def test_translations_come_in_the_order_of_the_data_set(work):
    opened = translator(work)
    first = [sample["id"].tolist() for sample in opened.batches]
    assert sum(first, []) != list(range(COUNTS["test"]))  # batches are by length
    assert opened.numbers == opened.translate().numbers == list(range(COUNTS["test"]))
    assert opened.references == (work / "test.en").read_text().splitlines()


def test_texts_and_references_are_detokenised(work, printed, monkeypatch):
    kinds = {"bpe": lambda text: text.replace(" ", "_"), "tokenizer": lambda text: text + " _"}
    for kind, decode in kinds.items():
        coder = SimpleNamespace(decode=decode)
        monkeypatch.setattr(FairseqTask, f"build_{kind}", lambda self, cfg, coder=coder: coder)
    opened = translator(work)
    references = {f"T-{i}": text for i, text in enumerate(opened.references)}
    found = opened.translate()
    assert found.texts != found.tokens
    assert lines(found) | references == printed(names="HDT")


@pytest.mark.parametrize("heads", ["E:1:1", "A:1:2-4 D:2:3"])
def test_masked_translations_are_those_of_generate(work, printed, heads):
    opened = translator(work)
    plain = opened.translate(keep_encoder=True)
    with masked(opened.model, parse_heads(heads)):
        found = opened.translate(keep_encoder="E" not in heads)
    assert found.scores != plain.scores
    assert lines(found) == printed("--task", "prune_heads", "--mask-heads", heads)
    assert opened.translate() == plain


def test_bleu_is_that_of_generate_when_asked_for(work, capsys):
    words = "--scoring sacrebleu --sacrebleu-tokenizer none --sacrebleu-lowercase".split()
    opened = translator(work, *words)
    bleu = Bleu.from_config(opened.references, opened.cfg.scoring)
    score = bleu.score(opened.translate().texts)
    capsys.readouterr()
    generate(work / "data", work / "saved" / LAST, *SEARCH, *words)
    assert f"BLEU = {score:.2f} " in capsys.readouterr().out
    assert "tok:none" in bleu.signature and "case:lc" in bleu.signature


def test_the_model_can_be_trained_afterwards(work):
    opened = translator(work)
    opened.translate(keep_encoder=True)
    sample = opened.batches[0]
    opened.model(**sample["net_input"])[0].sum().backward()
    assert opened.model.decoder.embed_tokens.weight.grad.abs().sum() > 0


# --- subsets --------------------------------------------------------------------------------------


def test_a_subset_is_fixed_and_part_of_larger_ones():
    assert choose(1000, 5, seed=1).tolist() == [242, 368, 452, 507, 818]  # whatever the numpy
    small, large = (set(choose(100, size, seed=7)) for size in (10, 30))
    assert len(small) == 10 and small < large
    assert set(choose(100, 10, seed=8)) != small
    assert choose(3, 10, seed=1).tolist() == [0, 1, 2]


def test_a_subset_is_translated_as_a_split_of_its_own(work, capsys):
    opened = translator(work, subset_size=11)
    found, numbers = opened.translate(), choose(COUNTS["test"], 11, seed=1).tolist()
    assert found.numbers == opened.numbers == numbers
    for language in ("de", "en"):
        texts = (work / f"test.{language}").read_text().splitlines()
        (work / f"part.{language}").write_text("".join(texts[i] + "\n" for i in numbers))
        assert language == "de" or opened.references == [texts[i] for i in numbers]
    dictionaries = [f"--srcdict={work / 'data/dict.de.txt'}", f"--testpref={work / 'part'}"]
    preprocess(work / "part", *dictionaries)
    capsys.readouterr()
    generate(work / "part", work / "saved" / LAST, *SEARCH)
    printed = re.findall(r"^D-(\d+)\t(.*)", capsys.readouterr().out, re.MULTILINE)
    expected = {numbers[int(i)]: text for i, text in printed}
    rows = zip(found.numbers, found.scores, found.texts, strict=True)
    assert {number: f"{score}\t{text}" for number, score, text in rows} == expected


def test_bad_settings_are_one_line(work):
    task, model, cfg = load(work)
    with pytest.raises(ValueError, match="a subset of 0 sentences is empty"):
        Translator(task, model, cfg, "test", subset_size=0)
    with pytest.raises(FileNotFoundError, match="Dataset not found: nothing"):
        Translator(task, model, cfg, "nothing")
    cfg = copy.deepcopy(cfg)
    cfg.generation.lm_path = "lm.pt"
    with pytest.raises(ValueError, match="--lm-path is for fairseq-generate only"):
        Translator(task, model, cfg, "test")


# --- processes ------------------------------------------------------------------------------------


def test_work_is_shared(monkeypatch):
    """Seven pieces of work on each of three processes in turn, and none twice."""
    assert share("abc", str.upper) == ["A", "B", "C"]
    sent: dict[int, list[str]] = {}
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)

    def gather(parts, mine):
        sent[torch.distributed.get_rank()] = mine
        parts[:] = [sent.get(rank) or [] for rank in range(3)]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    for rank in (2, 1):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        with pytest.raises(IndexError):  # the others have sent nothing yet
            share("abcdefg", str.upper)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    assert share("abcdefg", str.upper) == list("ABCDEFG")
    assert sent == {0: ["A", "D", "G"], 1: ["B", "E"], 2: ["C", "F"]}
