"""The tokeniser of a Hugging Face model: its entries as fairseq's dictionary, its work as `--bpe`.

fairseq's dictionary begins with its own four special symbols and ends with <mask>, which
`sentence_prediction` and `masked_lm` add. RoBERTa's has that order already, so its ids stay. BERT's
five special tokens move there, and the others close ranks: its ids change, its tokens do not.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq.data import Dictionary
from fairseq.data.encoders import register_bpe
from fairseq.dataclass import FairseqDataclass

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BPE = "hf_tokenizer"
TOKENIZER = "tokenizer.json"
MASK = "<mask>"
# what each kind calls fairseq's symbols
SPECIAL = {
    "bert": {
        "[CLS]": "<s>",
        "[PAD]": "<pad>",
        "[SEP]": "</s>",
        "[UNK]": "<unk>",
        "[MASK]": MASK,
    },
    "roberta": {symbol: symbol for symbol in ("<s>", "<pad>", "</s>", "<unk>", MASK)},
}


@dataclass
class TokenizerConfig(FairseqDataclass):
    hf_tokenizer: str = field(
        default=TOKENIZER, metadata={"help": "tokenizer.json of an imported model"}
    )


@register_bpe(BPE, dataclass=TokenizerConfig)
class HuggingFaceTokenizer:
    """A `tokenizers` tokeniser that gives the words of fairseq's dictionary."""

    def __init__(self, cfg: TokenizerConfig):
        self.tokenizer = load(cfg.hf_tokenizer)

    def encode(self, text: str) -> str:
        """Tokens between spaces, without those that open and close a sentence."""
        tokens = self.tokenizer.encode(text, add_special_tokens=False).tokens
        return " ".join(SPECIAL["bert"].get(token, token) for token in tokens)

    def decode(self, tokens: str) -> str:
        ids = (self.tokenizer.token_to_id(token) for token in tokens.split())
        return self.tokenizer.decode([i for i in ids if i is not None])

    def is_beginning_of_word(self, token: str) -> bool:
        """For whole-word masking."""
        bytewise = self.tokenizer.token_to_id("\u0120the") is not None  # a space, as bytes have it
        return token.startswith("\u0120") if bytewise else not token.startswith("##")


# --- reading --------------------------------------------------------------------------------------


def load(path: str | Path) -> "Tokenizer":
    """A tokenizer.json; it neither cuts nor fills up what it reads.

    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if it cannot be read.
        ModuleNotFoundError: without the library.
    """
    library = _library()
    if not Path(path).is_file():
        raise FileNotFoundError(f"no tokeniser {path}: name the tokenizer.json of the model")
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path} is not a tokeniser: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def find(folder: Path, kind: str) -> "Tokenizer":
    """The tokeniser of a model in Hugging Face's format, made from its parts if it is not whole.

    Args:
        kind: "bert" or "roberta".

    Raises:
        FileNotFoundError: if its files are not there, naming them.
        ValueError: if they cannot be read.
    """
    if (folder / TOKENIZER).is_file():
        return load(folder / TOKENIZER)
    parts = [folder / name for name in _PARTS[kind]]
    missing = [path.name for path in parts if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder} has no tokeniser of a {kind} model: neither {TOKENIZER} nor "
            f"{' and '.join(missing)}"
        )
    settings = folder / "tokenizer_config.json"
    settings = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    try:
        return (_word_pieces if kind == "bert" else _byte_pairs)(*parts, settings)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{parts[0]} cannot be read: {error}") from error


_PARTS = {"bert": ["vocab.txt"], "roberta": ["vocab.json", "merges.txt"]}


def _word_pieces(vocabulary: Path, settings: dict) -> "Tokenizer":
    tokenizer = _library().BertWordPieceTokenizer(
        str(vocabulary),
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    return tokenizer._tokenizer


def _byte_pairs(vocabulary: Path, merges: Path, settings: dict) -> "Tokenizer":
    library = _library()
    model = library.models.BPE.from_file(str(vocabulary), str(merges))
    tokenizer = library.Tokenizer(model)
    spaced = settings.get("add_prefix_space", False)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    tokenizer.decoder = library.decoders.ByteLevel()
    *symbols, mask = SPECIAL["roberta"]
    tokenizer.add_special_tokens([*symbols, library.AddedToken(mask, lstrip=True)])
    start, end = ((symbol, tokenizer.token_to_id(symbol)) for symbol in ("<s>", "</s>"))
    tokenizer.post_processor = library.processors.RobertaProcessing(
        end, start, add_prefix_space=spaced
    )
    return tokenizer


def _library():
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "reading a tokeniser needs the library of that name: "
            "pip install 'lite-transformer-plugin[import]'"
        ) from error
    return tokenizers


# --- the dictionary -------------------------------------------------------------------------------


def dictionary_of(tokenizer: "Tokenizer", kind: str) -> tuple[Dictionary, list[int]]:
    """fairseq's dictionary of a tokeniser's entries, <mask> included, and the id of each there.

    Raises:
        ValueError: if a special token is missing, or an entry cannot be one of a dictionary.
    """
    ids = tokenizer.get_vocab()
    special = SPECIAL[kind]
    for token in special:
        if token not in ids:
            raise ValueError(f"the tokeniser has no {token}, as that of a {kind} model has")
    rest = sorted(ids.keys() - special.keys(), key=ids.__getitem__)
    dictionary = Dictionary()
    for token in rest:
        if not token or any(c in token for c in " \r\n") or token in dictionary.indices:
            raise ValueError(f"the tokeniser's entry {token!r} cannot stand in a dictionary")
        dictionary.add_symbol(token)
    dictionary.add_symbol(MASK)
    named = {symbol: ids[token] for token, symbol in special.items()}
    return dictionary, [named.get(symbol, ids.get(symbol)) for symbol in dictionary.symbols]
