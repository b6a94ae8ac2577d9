"""BLEU and significance are sacreBLEU's."""

import os
import random
from types import SimpleNamespace

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from lite_transformer_plugin.scoring import Bleu, PairedBootstrap
from lite_transformer_plugin.significance import Comparison


def corpus(seed: int = 0, damage: float = 0.0) -> list[str]:
    """Sixty sentences of numbers; some of them damaged."""
    draw = random.Random(seed)
    rows = [[f"w{draw.randint(0, 30)}" for _ in range(draw.randint(5, 12))] for _ in range(60)]
    harm = random.Random(damage)
    return [" ".join(w if harm.random() > damage else "X" for w in row) for row in rows]


def test_bleu_is_sacrebleus():
    references, texts = ([f"{line}, Sir." for line in corpus(damage=d)] for d in (0, 0.2))
    assert Bleu(references).score(texts) == sacrebleu.corpus_bleu(texts, [references]).score
    settings = dict(tokenize="none", lowercase=True)
    tokenised = Bleu(references, **settings).score(texts)
    assert tokenised == sacrebleu.corpus_bleu(texts, [references], **settings).score
    assert tokenised != Bleu(references).score(texts)
    assert "tok:13a" in Bleu(references).signature
    assert "case:lc" in Bleu(references, **settings).signature


def test_other_scoring_is_sacrebleus_default():
    default = Bleu.from_config(corpus(), SimpleNamespace(_name="bleu"))
    assert default.score(corpus()) == pytest.approx(100)
    assert "case:mixed" in default.signature and "tok:13a" in default.signature


def test_bleu_needs_references():
    for references in ([], [None, None]):
        with pytest.raises(ValueError, match="BLEU needs references"):
            Bleu(references)
    characters = SimpleNamespace(_name="sacrebleu", sacrebleu_char_level=True)
    with pytest.raises(ValueError, match="give --sacrebleu-tokenizer char instead"):
        Bleu.from_config(corpus(), characters)


@pytest.mark.parametrize("seed", [12345, 7])
def test_significance_is_sacrebleus(monkeypatch, seed):
    systems = [("base", corpus(damage=0.2)), ("a", corpus(damage=0.24)), ("b", corpus(damage=0.5))]
    bootstrap = PairedBootstrap(Bleu(corpus()), systems[0][1], resamples=300, seed=seed)
    found = [bootstrap.compare(texts) for _, texts in systems[1:]]
    monkeypatch.setenv("SACREBLEU_SEED", str(seed))
    signatures, scores = PairedTest(systems, {"BLEU": BLEU()}, [corpus()], "bs", 300)()
    base, *others = scores["BLEU"]
    assert bootstrap.base == base.score
    expected = [Comparison(s.score, s.score - base.score, s.p_value) for s in others]
    assert found == expected == [bootstrap.compare(texts) for _, texts in systems[1:]]
    assert bootstrap.signature == str(signatures["BLEU"])
    assert [result.significant for result in found] == [False, True]


def test_equal_texts_do_not_differ_significantly():
    bootstrap = PairedBootstrap(Bleu(corpus()), corpus(damage=0.2), resamples=100)
    same = bootstrap.compare(corpus(damage=0.2))
    assert (same.difference, same.p, same.significant) == (0.0, 1.0, False)
    lowercase = PairedBootstrap(Bleu(corpus(), lowercase=True), corpus(damage=0.2), resamples=100)
    assert lowercase.compare([text.lower() for text in corpus(damage=0.2)]).p == 1.0


def test_sacrebleu_is_left_as_it_was(monkeypatch, caplog):
    monkeypatch.setenv("SACREBLEU_SEED", "3")
    caplog.set_level("INFO")
    bootstrap = PairedBootstrap(Bleu(corpus()), corpus(damage=0.2), resamples=10)
    bootstrap.compare(corpus(damage=0.3))
    assert os.environ["SACREBLEU_SEED"] == "3" and not caplog.records
    monkeypatch.delenv("SACREBLEU_SEED")
    PairedBootstrap(Bleu(corpus()), corpus(), resamples=10)
    assert "SACREBLEU_SEED" not in os.environ
    with pytest.raises(ValueError, match=r"the seed of the resamples \(0\) must be at least 1"):
        PairedBootstrap(Bleu(corpus()), corpus(), seed=0)
