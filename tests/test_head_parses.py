"""Parses are read from CoNLL-U, and pieces of any kind find their words."""

import pytest
import torch
from fairseq.data import Dictionary, FairseqDataset
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_transformer_plugin.heads.parses import (
    Arc,
    letters,
    match,
    read_conllu,
    words_of_pieces,
)


def conllu(*sentences) -> str:
    """Words as (form, governor, relation); a governor is a number from 1, or 0 for the root."""
    blocks = []
    for number, words in enumerate(sentences, start=1):
        lines = [f"# sent_id = {number}"]
        for i, (form, governor, relation) in enumerate(words, start=1):
            lines.append("\t".join([str(i), form, *"____", str(governor), relation, "_", "_"]))
        blocks.append("\n".join(lines) + "\n\n")
    return "".join(blocks)


CHILD = [("Das", 2, "det"), ("Kind", 3, "nsubj"), ("schläft", 0, "root"), (".", 3, "punct")]
SHORT = [("Das", 2, "det"), ("Kind", 0, "root")]


@pytest.fixture
def write(tmp_path):
    def write(text: str):
        path = tmp_path / "parses.conllu"
        path.write_bytes(text.encode())
        return path

    return write


# --- reading --------------------------------------------------------------------------------------


def test_a_sentence_has_words_and_arcs(write):
    [parse] = read_conllu(write(conllu(CHILD)))
    assert parse.words == ("Das", "Kind", "schläft", ".")
    assert parse.arcs == (Arc(0, 1, "det"), Arc(1, 2, "nsubj"), Arc(3, 2, "punct"))


@pytest.mark.parametrize("end", ["\n\n", "\n", ""])
def test_the_last_empty_line_may_be_missing(write, end):
    text = conllu(CHILD, CHILD[:3]).rstrip("\n") + end
    assert [len(parse.words) for parse in read_conllu(write(text))] == [4, 3]
    assert read_conllu(write(text.replace("\n", "\r\n"))) == read_conllu(write(text))


def test_contractions_are_words_and_left_out_words_are_none(write):
    """er geht zum (zu + dem) Haus; nothing stands for 4.1."""
    rows = [("1", "er", "2"), ("2", "geht", "0"), ("3-4", "zum", "_"), ("3", "zu", "5")]
    rows += [("4", "dem", "5"), ("4.1", "großen", "_"), ("5", "Haus", "2"), ("6", "hin", "5")]
    lines = ["\t".join([n, form, *"____", governor, "x", "_", "_"]) for n, form, governor in rows]
    [parse] = read_conllu(write("\n".join(lines)))
    assert parse.words == ("er", "geht", "zum", "Haus", "hin")
    pairs = [(arc.dependent, arc.governor) for arc in parse.arcs]
    assert pairs == [(0, 1), (2, 3), (2, 3), (3, 1), (4, 3)]


def test_arcs_inside_of_a_contraction_are_left_out(write):
    rows = [("1-2", "zum", "_"), ("1", "zu", "0"), ("2", "dem", "1"), ("3", "Haus", "1")]
    lines = ["\t".join([n, form, *"____", governor, "x", "_", "_"]) for n, form, governor in rows]
    [parse] = read_conllu(write("\n".join(lines)))
    assert parse.arcs == (Arc(1, 0, "x"),)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "has no sentence: CoNLL-U is one word a line"),
        ("# only a comment\n", "has no sentence"),
        ("Das Kind\n", "line 1: 'Das Kind' is no line of CoNLL-U: it is one word a line"),
        (conllu(CHILD).replace("3\tschl", "drei\tschl"), "line 4: .* is no line of CoNLL-U"),
        (conllu(CHILD, [("a", 7, "x")]), "sentence 2: word 1 is governed by '7': no such word"),
        (conllu([("a", "_", "_")]), "sentence 1: word 1 is governed by '_'"),
    ],
)
def test_what_is_no_conllu_is_refused(write, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_conllu(write(text))
    assert "parses.conllu" in str(caught.value) and "\n" not in str(caught.value)


def test_other_bytes_are_refused(tmp_path):
    path = tmp_path / "parses.conllu"
    path.write_bytes("schläft".encode("latin-1"))
    with pytest.raises(ValueError, match="is not UTF-8"):
        read_conllu(path)


# --- pieces ---------------------------------------------------------------------------------------

WORDS = ["Das", "Kind", "schläft", "."]


@pytest.mark.parametrize(
    "pieces, words",
    [
        ("▁Das ▁Kind ▁sch läft .", [0, 1, 2, 2, 3]),
        ("▁das ▁kind ▁schläft .", [0, 1, 2, 3]),
        ("D@@ as Kind schl@@ äft .", [0, 0, 1, 2, 2, 3]),
        ("▁ Das ▁ Kind ▁schläft .", [0, 0, 1, 1, 2, 3]),
        ("▁Das ▁Kind ▁schläft. ▁", [0, 1, 2, 3]),
        ("▁DasK ind ▁schla\u0308 ft .", [0, 1, 2, 2, 3]),
        ("▁Das ▁Ki ndsch läft .", [0, 1, 2, 2, 3]),
    ],
)
def test_pieces_find_their_words(pieces, words):
    assert words_of_pieces(pieces.split(" "), WORDS) == words


@pytest.mark.parametrize(
    "pieces", ["Das Kind schläft", "Das Kind schläft . .", "Das Rind schläft .", ""]
)
def test_other_letters_do_not_match(pieces):
    assert words_of_pieces(pieces.split(), WORDS) is None


@pytest.mark.parametrize(
    "pieces, words",
    [
        (["▁Das", None, "▁schläft", "."], [0, 1, 2, 3]),
        ([None, "▁Kind", "▁schläft", "."], [0, 1, 2, 3]),
        (["▁Das", "▁Kind", "▁schläft", None], [0, 1, 2, 3]),
        (["▁Das", "▁Kind", "▁", None, "▁", "."], [0, 1, 2, 2, 3, 3]),
        (["▁Das", "▁Kind", "s", None, None, "t", "."], [0, 1, 2, 2, 2, 2, 3]),
        ([None], [2]),
        ([None] * 15, [*[0] * 3, *[1] * 4, *[2] * 8]),
        ([None, "läft", "."], None),
        (["▁Das", None, "▁Kind", None], None),
    ],
)
def test_unknown_pieces_stand_for_letters(pieces, words):
    """The last case: between Das and Kind there is no letter left."""
    if pieces == [None, "läft", "."]:
        words = [1, 2, 3]
    assert words_of_pieces(pieces, WORDS) == words


def test_many_unknown_pieces_take_no_time():
    pieces = ["a", None] * 200
    assert words_of_pieces([*pieces, "c"], ["ab" * 1000]) is None
    assert len(words_of_pieces(pieces, ["ab" * 1000])) == 400


words_of_letters = st.lists(st.text("abäß.", min_size=1, max_size=6), min_size=1, max_size=8)


@settings(deadline=None)
@given(words_of_letters, st.data())
def test_any_cut_into_pieces_is_put_together(words, data):
    pieces, expected = [], []
    for i, word in enumerate(words):
        cuts = sorted({0, len(word), *data.draw(st.lists(st.integers(0, len(word)), max_size=3))})
        parts = [word[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
        pieces += ["▁" + parts[0], *parts[1:]]
        expected += [i] * len(parts)
    assert words_of_pieces(pieces, words) == expected
    assert "".join(letters(piece) for piece in pieces) == letters("".join(words))


# --- a data set -----------------------------------------------------------------------------------


class Sources(FairseqDataset):
    def __init__(self, *sentences):
        self.dictionary = Dictionary()
        for word in " ".join(sentences).split():
            if word != "???":
                self.dictionary.add_symbol(word)
        self.rows = [
            torch.tensor([*map(self.dictionary.index, sentence.split()), self.dictionary.eos()])
            for sentence in sentences
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"id": i, "source": self.rows[i]}


def owners(dataset, parses):
    return match(parses, dataset, dataset.dictionary, ("FILE", "valid"))


def test_every_sentence_has_the_words_of_its_pieces(write):
    parses = read_conllu(write(conllu(CHILD, SHORT)))
    dataset = Sources("▁Das ▁Ki nd ▁schläft .", "▁Das ???")
    assert owners(dataset, parses) == [[0, 1, 1, 2, 3], [0, 1]]


@pytest.mark.parametrize(
    "sentences, message",
    [
        (["▁Das ▁Kind ▁schläft .", "▁Das ▁R ind"], "sentence 2 is 'Das Kind' there and 'Das Rind'"),
        (["▁Das ▁Kind", "▁Das ▁Kind"], "1 is 'Das Kind schläft .' there and 'Das Kind' here"),
        (["Das Ki@@ nd schläft ."], "sentence 2 is 'Das Kind' there and missing here"),
        (["Das Ki@@ nd schläft .", "Das Kind", "Da@@ s"], "3 is missing there and 'Das' here"),
        (["Das " * 40], "'Das Das .* \\.\\.\\.' here"),
        (["▁Das ??? ▁Kind"], "'Das <unk> Kind' here"),
    ],
)
def test_the_first_sentence_that_differs_is_named(write, sentences, message):
    parses = read_conllu(write(conllu(CHILD, SHORT)))
    with pytest.raises(ValueError, match=message) as caught:
        owners(Sources(*sentences), parses)
    assert str(caught.value).startswith("FILE has other sentences than valid")
    assert "\n" not in str(caught.value)
