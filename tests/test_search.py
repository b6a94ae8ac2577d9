"""What a search keeps for the next one changes nothing, and is no more than allowed."""

from pathlib import Path

import pytest
from test_evaluation import load, make_work, translator

from lite_transformer_plugin.evaluation import Translator
from lite_transformer_plugin.heads import masked, parse_heads


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return make_work(tmp_path_factory.getbasetemp())


@pytest.fixture
def encoded(work):
    """A translator, and the sizes of the batches that its encoder has seen."""
    opened, seen = translator(work), []
    hook = opened.model.encoder.layers[0].register_forward_hook(
        lambda module, inputs, output: seen.append(inputs[0].size(1))
    )
    yield opened, seen
    hook.remove()


def test_the_encoder_runs_once_where_its_output_is_kept(encoded):
    opened, seen = encoded
    plain = opened.translate()
    once = len(seen)
    assert once == len(opened.batches)
    assert opened.translate(keep_encoder=True) == opened.translate(keep_encoder=True) == plain
    assert len(seen) == 2 * once
    with masked(opened.model, parse_heads("E:1:1")):
        assert opened.translate().scores != plain.scores
    assert len(seen) == 3 * once


def test_no_more_is_kept_than_allowed(work):
    def sizes(opened: Translator) -> list[int]:
        kept = [outputs[0].values() for outputs in opened.generator.model.kept.values()]
        return [sum(x.nbytes for tensors in values for x in tensors) for values in kept]

    task, model, cfg = load(work)
    whole = Translator(task, model, cfg, "test")
    plain = whole.translate(keep_encoder=True)
    assert len(sizes(whole)) == len(whole.batches)
    for memory in (0, max(sizes(whole))):
        opened = Translator(task, model, cfg, "test", encoder_memory=memory)
        assert opened.translate(keep_encoder=True) == opened.translate(keep_encoder=True) == plain
        assert (memory > 0) == (sum(sizes(opened)) > 0) and sum(sizes(opened)) <= memory


def test_a_failed_translation_leaves_no_trace(encoded):
    opened, seen = encoded
    plain = opened.translate()

    def fail(module, inputs):
        if len(seen) % 2:
            raise RuntimeError("out of memory")

    hook = opened.model.decoder.layers[0].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        opened.translate(keep_encoder=True)
    hook.remove()
    assert opened.translate(keep_encoder=True) == opened.translate() == plain
