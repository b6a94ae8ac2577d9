"""Models, losses and batches whose importance of heads the tests measure."""

from types import SimpleNamespace

import torch
from conftest import randomise
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.criterions.sentence_prediction import SentencePredictionCriterion
from fairseq.utils import convert_padding_direction
from head_models import WORDS, make
from torch import Tensor, nn
from torch.testing import assert_close

from lite_transformer_plugin import build
from lite_transformer_plugin.heads.importance import measure

PAD, EOS, MASK = 1, 2, 3
ONE_LAYER = ["--encoder-layers", "1", "--decoder-layers", "1"]
DROPOUT = [f"--{name}dropout=0.4" for name in ("", "attention-", "activation-")]
TASK = build.task_of(WORDS, WORDS)
TASK.label_dictionary = TASK.target_dictionary
CLASSIFIER = SimpleNamespace(
    classification_head_name="label",
    regression_target=False,
    report_mcc=False,
    report_acc_and_f1=False,
    report_pearson_and_spearman=False,
)
SMOOTHED = LabelSmoothedCrossEntropyCriterion(TASK, sentence_avg=False, label_smoothing=0.1)
CRITERIA = {
    "lite_transformer": SMOOTHED,
    "transformer": SMOOTHED,
    "bart": SMOOTHED,
    "transformer_lm": CrossEntropyCriterion(TASK, sentence_avg=False),
    "adaptive": AdaptiveLoss(TASK, sentence_avg=False),
    "roberta": MaskedLmLoss(SimpleNamespace(tpu=False), TASK),
    "classifier": SentencePredictionCriterion(CLASSIFIER, TASK),
}
KINDS = list(CRITERIA)
LANGUAGE_MODELS = ("transformer_lm", "lite_transformer_lm", "adaptive")
RELU = ["--activation-fn", "relu"]  # fairseq's GELU is in float32
FLAGS = {
    "bart": RELU,
    "transformer": ONE_LAYER,
    "transformer_lm": ONE_LAYER[2:],
    "adaptive": [*ONE_LAYER[2:], "--adaptive-softmax-cutoff", "8,16"],
    "roberta": [*ONE_LAYER[:2], *RELU],
    "classifier": [*ONE_LAYER[:2], *RELU],
}
NAMES = {"adaptive": "transformer_lm", "classifier": "roberta"}


def model_of(kind: str, *flags: str, dtype: torch.dtype = torch.double) -> nn.Module:
    torch.manual_seed(0)
    extra = [] if kind in LANGUAGE_MODELS and "--checkpoint-activations" in flags else DROPOUT
    model = make(NAMES.get(kind, kind), *FLAGS.get(kind, []), *extra, *flags)
    if kind == "classifier":
        model.register_classification_head("label", num_classes=3)
    return randomise(model).to(dtype).train()  # the dropout has to be switched off


def sentence(length: int, seed: int) -> Tensor:
    words = torch.randint(4, WORDS, (length,), generator=torch.Generator().manual_seed(seed))
    return torch.cat([words, torch.tensor([EOS])])


PAIRS = [(sentence(n, n), sentence(m, 10 + m)) for n, m in ((2, 3), (5, 1), (1, 4), (3, 2), (4, 6))]


def pad(sentences: list[Tensor], left: bool) -> Tensor:
    batch = nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=PAD)
    return convert_padding_direction(batch, PAD, right_to_left=True) if left else batch


def batch_of(kind: str, pairs: list, left: str = "") -> dict:
    """fairseq's batch; sides named in `left` (source, target) are padded on the left."""
    source = pad([a for a, _ in pairs], "source" in left)
    target = pad([b for _, b in pairs], "target" in left)
    inputs = {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1)}
    if kind in LANGUAGE_MODELS:
        inputs["src_tokens"] = pad([b.roll(1) for _, b in pairs], False)
    elif kind == "roberta":
        masks = torch.arange(source.size(1)).expand_as(source) % 2 == 1
        inputs["src_tokens"] = source.masked_fill(masks & source.ne(PAD), MASK)
        target = source.masked_fill(~masks, PAD)
    elif kind == "classifier":
        target = torch.stack([a[0] % 3 for a, _ in pairs])
    else:
        moved = [b.roll(1) for _, b in pairs]  # fairseq starts a sentence with its end
        inputs["prev_output_tokens"] = pad(moved, "target" in left)
    words = int(target.ne(PAD).sum())
    return {"net_input": inputs, "target": target, "ntokens": words, "nsentences": len(pairs)}


def batches_of(kind: str, size: int, left: str = "") -> list[dict]:
    cuts = range(0, len(PAIRS), size)
    return [batch_of(kind, PAIRS[start : start + size], left) for start in cuts]


def importance_of(model, kind: str, samples=None, unit: str = "sentence", **how) -> dict:
    samples = batches_of(kind, 3) if samples is None else samples
    how = {"normalise": False} | how
    return measure(model, CRITERIA[kind], samples, unit, **how).scores


def assert_same(actual: dict, expected: dict, rtol: float = 1e-6, atol: float = 1e-7) -> None:
    assert list(actual) == list(expected)
    values = [torch.tensor(list(x.values()), dtype=torch.double) for x in (actual, expected)]
    assert_close(*values, rtol=rtol, atol=atol)
