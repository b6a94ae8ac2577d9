"""What fairseq-generate printed is read in the order of the set, whole, and apart from its log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_transformer_plugin.generation_output import read_lines, read_sentences

# printable, with the characters at which Python, but not fairseq, would cut a line
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=9)


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    return tmp_path_factory.mktemp("output") / "generate.txt"


def test_translations_are_sorted_and_log_lines_left_out(generated):
    generated.write_text(
        "The log begins with T\nH-hyphen\nT-1\tb a\nH-1\t-0.5\ty\nT-10\tk\nH-10\t-0.5\tz\n"
        "T-0\ta\nH-0\t-0.25\tx\n" + "".join(f"T-{n}\tt\nH-{n}\t-1\th\n" for n in range(2, 10))
    )
    assert read_sentences(generated, "T") == ["a", "b a", *"tttttttt", "k"]
    assert read_sentences(generated, "H") == ["x", "y", *"hhhhhhhh", "z"]


@given(st.permutations(range(5)), st.lists(TEXT, min_size=5, max_size=5))
def test_every_kind_in_the_order_of_the_set(generated, order, texts):
    """As fairseq-generate prints them; a text may be empty, or hold a tab."""
    blocks = (
        f"S-{n}\ts{texts[n]}\nT-{n}\tt{texts[n]}\nH-{n}\t-0.5\th{texts[n]}\nD-{n}\t-0.5\t{texts[n]}\n"
        f"P-{n}\t-0.5 -0.5\n"
        for n in order
    )
    generated.write_text("".join(blocks), encoding="utf-8", newline="\n")
    for kind in "STH":
        expected = [kind.lower() + text for text in texts]
        assert read_sentences(generated, kind) == expected
    assert read_sentences(generated, "D", expected=5) == texts


@pytest.mark.parametrize(
    "content, expected, counts",
    [
        ("H-0\t-1\tx\nH-2\t-1\tx\n", None, "2, not 3"),
        ("H-0\t-1\tx\nH-1\t-1\tx\n", 3, "2, not 3"),
        ("H-0\t-1\tx\nH-1\t-1\tx\n", 1, "2, not 1"),
        ("H-0\t-1\tx\nH-1\t-0.", 2, "1, not 2"),
        ("nothing but a log\n", None, "0, not 1"),
    ],
)
def test_missing_sentences_are_told(content, expected, counts, generated):
    generated.write_text(content)
    with pytest.raises(ValueError, match=f"{generated} .* H- lines of every sentence: {counts}"):
        read_sentences(generated, "H", expected)


def test_a_damaged_file_is_told(generated):
    generated.write_bytes(b"a\n\xff\n")
    with pytest.raises(ValueError, match=f"{generated} is damaged: .*utf-8"):
        list(read_lines(generated))
