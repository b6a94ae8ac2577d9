"""The text steps of the translation examples: what Moses' scripts give, and fairseq's recipes."""

from functools import partial

import pytest
from translation_examples import EN_FR, IWSLT, TRAIN_TAGS, corpus, text_steps


def test_talk_sentences():
    found = list(text_steps.talk_sentences(TRAIN_TAGS.split("\n")))
    assert found == ["Am Meer", "Ein Vortrag.", "Guten Morgen.", "Das Meer ist <tief>."]


def test_segments_of_xml_and_sgm():
    markup = """<doc docid="1"><title>No sentence</title>
    <seg id="1"> One &amp; two: &quot;three&quot;. </seg><seg id="2">Four
    five.</seg>
    <SEG id="3"></SEG></doc>"""
    assert text_steps.segments(markup) == ['One & two: "three".', "Four five.", ""]


# What Moses wrote (revision 34452895f): tokenizer.perl, with option -a, normalize-punctuation.perl.
TOKENISED = [
    ("de", False, "Das ist z. B. ein Test, oder?", "Das ist z. B. ein Test , oder ?"),
    ("de", False, "Der Wert ist 1.", "Der Wert ist 1 ."),  # sacremoses alone leaves `1.`
    ("de", False, "Extras - Makros...", "Extras - Makros ..."),
    ("de", True, "E-Mail: [A|B]", "E @-@ Mail : &#91; A &#124; B &#93;"),
    ("en", False, "It's Mr. Smith's, isn't it?", "It &apos;s Mr. Smith &apos;s , isn &apos;t it ?"),
    ("en", True, "A well-known page.", "A well @-@ known page ."),
    ("fr", True, "L'homme : dit-il.", "L&apos; homme : dit @-@ il ."),
]


@pytest.mark.parametrize("language, dashes, sentence, expected", TOKENISED)
def test_tokenise_is_moses(language, dashes, sentence, expected):
    assert text_steps.tokenise(sentence, language, dashes) == expected


@pytest.mark.parametrize(
    "language, tokens, expected",
    [
        ("de", "E @-@ Mail : &#91; A &#124; B &#93; .", "E-Mail: [A | B]."),
        ("en", "it &apos;s mr. smith &apos;s , isn &apos;t it ?", "it's mr. smith's, isn't it?"),
        ("en", "he said &quot; stop &quot; ( now ) .", 'he said "stop" (now).'),
        ("fr", "L&apos; homme : dit @-@ il .", "L'homme : dit-il."),
    ],
)
def test_detokenise_is_moses(language, tokens, expected):
    assert text_steps.detokenise(tokens, language) == expected


@pytest.mark.parametrize(
    "language, sentence, expected",
    [
        ("de", "„Ja“, sagte er.", '"Ja", sagte er.'),
        ("en", 'He said "stop".', 'He said "stop."'),
        ("de", 'Er sagte "halt."', 'Er sagte "halt".'),  # sacremoses alone leaves it
        ("fr", "Là\u00a0: «\u00a0oui\u00a0», 1\u00a0000\x07", 'Là: "oui", 1,000 '),
    ],
)
def test_normalise_is_moses(language, sentence, expected):
    assert text_steps.normalise(sentence, language) == expected


@pytest.mark.parametrize(
    "source, target, clean",
    [
        ("a b c", "a b", True),  # 3 / 2 is not above 1.5
        ("a b", "a b c d", False),
        ("", "a", False),
        ("a " * 175, "a " * 175, True),
        ("a " * 176, "a " * 175, False),
        ("a" * 1000, "b", True),
        ("a" * 1001, "b", False),
    ],
)
def test_is_clean(source, target, clean):
    assert text_steps.is_clean(source, target, shortest=1, longest=175, ratio=1.5) is clean
    assert text_steps.is_clean(target, source, shortest=1, longest=175, ratio=1.5) is clean


def test_compounds_are_split_for_the_score():
    assert text_steps.split_compounds("rot-grün-blau - E-Mail -") == (
        "rot ##AT##-##AT## grün ##AT##-##AT## blau - E ##AT##-##AT## Mail -"
    )


def test_steps_in_their_order():
    """The committed lines of both languages, through the steps of WMT'14 En-Fr and IWSLT'14."""
    pair = ("L\u2019ÉTÉ\u00a0: E-Mail.", "It\u2019s E-mail.")
    steps = {example: corpus(example)["steps"] for example in (IWSLT, EN_FR)}
    tokens = partial(text_steps.to_tokens, pair, ("fr", "en"))
    assert tokens(steps[EN_FR], training=True) == (
        "L &quot; ÉTÉ : E @-@ Mail .",  # what Moses' normalisation makes of that apostrophe
        "It &apos;s E @-@ mail .",
    )
    assert tokens(steps[EN_FR], training=False)[0] == "L&apos; ÉTÉ : E @-@ Mail ."
    assert tokens(steps[IWSLT], training=True)[1] == "it ’ s e-mail ."
    assert tokens(steps[IWSLT], training=False)[1] == "it &apos;s e-mail ."
