"""The text steps: from markup to sentences, from sentences to tokens, and back.

sacremoses stands in for Moses' Perl scripts. Two of its results differ from theirs; both are set
right here, after which 32,000 lines (German, English, and both with French punctuation) came out
exactly as from Moses: normalised, tokenised with and without -a, and detokenised.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from xml.sax.saxutils import unescape

from corpus_files import MISSING

try:
    import regex  # comes with sacremoses, which matches characters by class with it
    from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
except ModuleNotFoundError as error:
    raise SystemExit(MISSING.format(error.name)) from error

Pair = tuple[str, str]
LONGEST_WORD = 1000  # characters: Moses' clean-corpus-n drops a pair with a longer one

# --- markup ---------------------------------------------------------------------------------------

ABOUT_THE_TALK = re.compile(r"<(url|talkid|keywords)>")
HEADING = re.compile(r"</?(title|description)>")
SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
QUOTES = {"&quot;": '"', "&apos;": "'"}


def talk_sentences(lines: Iterable[str]) -> Iterator[str]:
    """Sentences of IWSLT's train.tags: of what describes a talk, title and description stay."""
    for line in lines:
        if not ABOUT_THE_TALK.search(line):
            yield HEADING.sub("", line).strip()


def segments(markup: str) -> list[str]:
    """Sentences of an IWSLT .xml or a WMT .sgm file, which are not quite XML."""
    found = SEGMENT.findall(markup)
    return [unescape(" ".join(text.split()), QUOTES) for text in found]


TAG = re.compile(r"</?t>")


def untagged(line: str) -> str:
    """A summary without the <t> and </t> around its sentences."""
    return " ".join(TAG.sub(" ", line).split())


# --- sentences to tokens --------------------------------------------------------------------------

CONTROL = regex.compile(r"\p{C}")
LAST_STOP = re.compile(r"(?<=[^\s.])\.$")


@cache
def _normalizer(language: str) -> MosesPunctNormalizer:
    return MosesPunctNormalizer(language, perl_parity=True)


@cache
def _tokenizer(language: str) -> MosesTokenizer:
    return MosesTokenizer(language)


def normalise(sentence: str, language: str) -> str:
    """Moses' normalize-punctuation and remove-non-printing-char."""
    # Moses sees the line feed, and so moves a last full stop behind a quotation mark
    return CONTROL.sub(" ", _normalizer(language).normalize(sentence + "\n"))


def straighten(sentence: str) -> str:
    """A typographic apostrophe as a plain one, which fairseq's recipes do to test sets."""
    return sentence.replace("\u2019", "'")


def tokenise(sentence: str, language: str, split_dashes: bool = False) -> str:
    """Moses' tokenizer; ``split_dashes`` is its -a: `a-b` becomes `a @-@ b`."""
    tokens = _tokenizer(language).tokenize(
        sentence, aggressive_dash_splits=split_dashes, return_str=True
    )
    return LAST_STOP.sub(" .", tokens)  # Moses splits the last word whatever stands before the stop


# --- pairs ----------------------------------------------------------------------------------------


def to_tokens(pair: Pair, languages: Pair, steps: dict, training: bool) -> Pair:
    """Both sides of a pair, tokenised; a source is cut to ``longest_source`` tokens."""
    result = []
    spoken = [steps["language"]] * 2 if "language" in steps else languages
    for sentence, language in zip(pair, spoken, strict=True):
        if training and steps["normalise"]:
            sentence = normalise(sentence, language)
        if not training and steps["straighten"]:
            sentence = straighten(sentence)
        tokens = tokenise(sentence, language, steps["split_dashes"])
        result.append(tokens.lower() if steps["lowercase"] else tokens)
    if longest := steps.get("longest_source"):
        result[0] = " ".join(result[0].split()[:longest])
    return tuple(result)


def is_clean(source: str, target: str, shortest: int, longest: int, ratio: float) -> bool:
    """Moses' clean-corpus-n: whether both sides are of good length, by themselves and together."""
    words = [source.split(), target.split()]
    short, long = sorted(map(len, words))
    if short < max(shortest, 1) or long > longest or long / short > ratio:
        return False
    return all(len(word) <= LONGEST_WORD for side in words for word in side)


def clean(pairs: Iterable[Pair], limits: dict | None) -> Iterator[Pair]:
    """Without the pairs that are too long, too short or too unequal; spaces made single."""
    for pair in pairs:
        if limits is None or is_clean(*pair, **limits):
            yield tuple(" ".join(side.split()) for side in pair)


def is_held_out(number: int, every: int) -> bool:
    """Whether the pair of this number, from 1, goes from training to validation."""
    return number % every == 0


# --- tokens back to text --------------------------------------------------------------------------

HYPHEN = re.compile(r"(\S)-(\S)")


def split_compounds(tokens: str) -> str:
    """`a-b` as three tokens, on both sides: how tokenised BLEU of WMT En-De is counted."""
    return HYPHEN.sub(r"\1 ##AT##-##AT## \2", tokens)


@cache
def _detokenizer(language: str) -> MosesDetokenizer:
    return MosesDetokenizer(language)


def detokenise(tokens: str, language: str) -> str:
    """Moses' detokenizer: plain text, for sacreBLEU."""
    return _detokenizer(language).detokenize(tokens.split())
