"""Small models of every kind whose heads the tests name, gate and remove, and their passes."""

import copy

import torch
from conftest import randomise
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from lite_transformer_plugin import build
from lite_transformer_plugin.heads import attentions

WORDS = 24  # the vocabulary


def sides(encoder: dict, decoder: dict) -> list[str]:
    """Flags of both sides: {"layers": 2} -> --encoder-layers 2."""
    named = {"encoder": encoder, "decoder": decoder}
    pairs = [(f"--{side}-{key}", value) for side in named for key, value in named[side].items()]
    return [str(word) for pair in pairs for word in pair]


def size(layers: int, heads: int, width: int = 16) -> dict:
    return {
        "layers": layers,
        "attention-heads": heads,
        "embed-dim": width,
        "ffn-embed-dim": width,
    }


def convolutional(layers: int, heads: int) -> dict:
    return size(layers, heads) | {"conv-dim": 16, "kernel-size-list": [3] * layers}


RECURRENT = {"embed-dim": 8, "hidden-size": 8}
NARROW = {"embed-dim": 8, "layers": "[(8,3)]*2"}
# architecture, flags and heads of every kind of model
MODELS = {
    "lite_transformer": (
        "lite_transformer",
        # of the decoder's two numbers of heads, LSRA's is apart
        [*sides(size(2, 2), size(1, 4)), "--decoder-self-attention-heads", "2"],
        "E:1:1,2 E:2:1,2 A:1:1-4 D:1:1,2",
    ),
    "transformer": (
        "transformer",
        sides(size(3, 4), size(2, 3, 12) | {"output-dim": 12}),
        "E:1:1-4 E:2:1-4 E:3:1-4 A:1:1-3 A:2:1-3 D:1:1-3 D:2:1-3",
    ),
    "bart": ("bart_base", sides(size(2, 4), size(1, 2)), "E:1:1-4 E:2:1-4 A:1:1,2 D:1:1,2"),
    "transformer_lm": ("transformer_lm", sides({}, size(2, 4)), "D:1:1-4 D:2:1-4"),
    "lite_transformer_lm": ("lite_transformer_lm", sides({}, size(2, 2)), "D:1:1,2 D:2:1,2"),
    "roberta": ("roberta", sides(size(2, 4), {}), "E:1:1-4 E:2:1-4"),
    "lightconv": (
        "lightconv",
        sides(convolutional(2, 4), convolutional(2, 2)),
        "A:1:1,2 A:2:1,2",
    ),
    "no cross-attention": (
        "transformer",
        [*sides(size(1, 4), size(1, 2)), "--no-cross-attention"],
        "E:1:1-4 D:1:1,2",
    ),
    "fconv": ("fconv", sides(NARROW, NARROW | {"out-embed-dim": 8}), ""),
    "lstm": ("lstm", sides(RECURRENT, RECURRENT | {"out-embed-dim": 8}), ""),
}


def make(kind: str, *flags: str):
    arch, given_flags, _ = MODELS[kind]
    return build.architecture(arch, WORDS, [*given_flags, *flags])


# --- batches and passes ---------------------------------------------------------------------------

PAD, EOS = 1, 2
TRANSLATING = ["lite_transformer", "transformer", "bart"]
LANGUAGE_MODELS = ["transformer_lm", "lite_transformer_lm"]
GENERATING = TRANSLATING + LANGUAGE_MODELS
KINDS = [*GENERATING, "roberta"]
CHECKPOINTED = ["--checkpoint-activations"]  # fairseq's RoBERTa has no such flag
NO_DROPOUT = [f"--{name}dropout=0" for name in ("", "attention-", "activation-")]
SOURCE, TARGET = (7, 4, 1), (5, 3, 1)  # real tokens of each sentence
SHAPES = {"H": 0, "B x H": 1, "T x B x H": 2}  # dimensions in front of the heads


def model_of(kind: str, *flags: str, **how) -> nn.Module:
    extra = ["--weight-dropout=0"] if kind.startswith("lite") else []
    model = make(kind, *NO_DROPOUT, *extra, *flags)
    return randomise(model).to(**how).eval()


def rows(lengths, left: bool = False) -> Tensor:
    """Random words (B, T) and padding, the last word of each row an end of sentence."""
    generator = torch.Generator().manual_seed(0)
    batch = torch.full((len(lengths), max(lengths)), PAD)
    for row, n in zip(batch, lengths, strict=True):
        words = torch.randint(4, WORDS, (n,), generator=generator)
        words[-1] = EOS
        row[-n if left else 0 :][:n] = words
    return batch


def net_input(kind: str) -> dict[str, Tensor]:
    if kind not in TRANSLATING:
        return {"src_tokens": rows(TARGET)}
    source = {
        "src_tokens": rows(SOURCE, left=kind != "bart"),
        "src_lengths": torch.tensor(SOURCE),
    }
    return source | {"prev_output_tokens": rows(TARGET)}


def full_pass(model: nn.Module, kind: str) -> Tensor:
    """Logits (B, T, V), teacher-forced."""
    return model(**net_input(kind))[0]


def stepwise(model: nn.Module, kind: str) -> Tensor:
    """Logits (B, T, V), one position after the other with incremental state."""
    words, encoded = rows(TARGET), {}
    if kind not in LANGUAGE_MODELS:
        source = net_input(kind)
        encoded["encoder_out"] = model.encoder(source["src_tokens"], source["src_lengths"])
    state: dict = {}
    with torch.no_grad():
        steps = [
            model.decoder(words[:, : i + 1], incremental_state=state, **encoded)[0]
            for i in range(words.size(1))
        ]
    return torch.cat(steps, dim=1)


def search(model: nn.Module, kind: str) -> list[tuple]:
    """Every hypothesis of a beam search, with its scores."""
    model = copy.deepcopy(model)  # a search leaves its beam size in a BART
    generator = SequenceGenerator([model], build.dictionary(WORDS), beam_size=3, max_len_b=8)
    inputs = {name: x for name, x in net_input(kind).items() if name != "prev_output_tokens"}
    prefix = torch.tensor([[5], [6], [7]]) if kind in LANGUAGE_MODELS else None
    found = generator.generate([model], {"net_input": inputs}, prefix_tokens=prefix)
    return [
        (h["tokens"].tolist(), h["score"].item(), h["positional_scores"].tolist())
        for hypotheses in found
        for h in hypotheses
    ]


def training(model: nn.Module, kind: str) -> Tensor:
    try:
        return full_pass(model.train(), kind).detach()
    finally:
        model.eval()


def validation(model: nn.Module, kind: str) -> Tensor:
    with torch.no_grad():
        return full_pass(model, kind)


def passes(kind: str) -> dict:
    with_state = {"generation": stepwise} if kind in GENERATING else {}
    return {"training": training, "validation": validation} | with_state


def sizes(kind: str, part: str) -> tuple[int, int]:
    """T, B of the queries of this part's attentions."""
    lengths = SOURCE if part == "E" and kind in TRANSLATING else TARGET
    return max(lengths), len(lengths)


def make_gates(model: nn.Module, kind: str, dims: int, fill=torch.ones, **how) -> dict:
    return {
        a.place: fill(*sizes(kind, a.part)[2 - dims :], len(a.heads), **how)
        for a in attentions(model)
    }


def traces(model: nn.Module) -> list:
    """What gates could leave behind."""
    found: list = [id(t) for t in model.state_dict().values()] and list(model.state_dict())
    for attention in attentions(model):
        module = attention.module
        hooks = [len(x) for name, x in vars(module).items() if "_hooks" in name]
        found += [attention.place, id(module.out_proj), sorted(vars(module)), hooks]
    return found
