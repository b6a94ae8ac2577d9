"""Speed and memory beside stock fairseq: interleaved, CPU time, medians and ratios.

    python benchmark.py [train] [decode] [convolution] [length] [heads] [summaries]
        [--json FILE]

Random weights and words, sizes of the paper. A ratio above 1 says that ours is faster (or needs
less memory) than fairseq's module of the same size. The two take turns in one process, so that
whatever else the machine does meets both.
"""

import argparse
import copy
import sys
import time
from collections.abc import Iterator

import torch
from fairseq.modules.lightweight_convolution import LightweightConv1dTBC
from side_by_side import Row, Work, interleaved, peak_memory, row, step
from summaries import summaries

import lite_transformer_plugin  # noqa: F401  (registers the architectures)
from lite_transformer_plugin import build, report
from lite_transformer_plugin.cost import Lengths
from lite_transformer_plugin.cost.latency import Setting, measure, threads
from lite_transformer_plugin.heads import list_heads, mask_heads
from lite_transformer_plugin.heads.removal import remove_heads_
from lite_transformer_plugin.modules.depthwise_convolution import LightweightConvolution

# name -> our architecture, dictionary entries, flags that give fairseq's transformer the same
# embedding and FFN size and the same number of heads; its dropout is ours
SIZES = {
    "i320": ("lite_transformer_iwslt_de_en_320", 10_000, 320, 4),
    "w496": ("lite_transformer_wmt_en_de_496", 32_768, 496, 8),
}
BATCHES = (1, 16, 64)  # sentences, for decoding
SENTENCES = 64  # for a training step
KERNELS = (3, 7, 15, 31)
LENGTHS = (28, 100, 250, 500, 1000)
PRUNED = "transformer_iwslt_de_en"  # the model that loses heads

Size = tuple[str, int, int, int]


def models(size: Size) -> dict[str, torch.nn.Module]:
    """Ours and fairseq's transformer of the same embedding and FFN size."""
    arch, words, width, heads = size
    torch.manual_seed(1)
    flags = ["--encoder-embed-dim", width, "--encoder-ffn-embed-dim", width]
    flags += ["--encoder-attention-heads", heads, "--decoder-attention-heads", heads]
    args = build.arguments(arch)
    for rate in ("dropout", "attention_dropout"):
        flags += [f"--{rate.replace('_', '-')}", getattr(args, rate)]
    ours = build.architecture(arch, words)
    if ours.decoder.share_input_output_embed:
        flags.append("--share-all-embeddings")
    return {
        "ours": ours,
        "stock": build.architecture("transformer", words, [str(flag) for flag in flags]),
    }


# --- what is measured -----------------------------------------------------------------------------


def train(turns: int) -> Iterator[Row]:
    for name, (_, words, _, _) in SIZES.items():
        works = {who: step(m, words, SENTENCES, 28) for who, m in models(SIZES[name]).items()}
        yield row(f"training step, {name}", **interleaved(works, turns))


def decode(turns: int) -> Iterator[Row]:
    """Beam 4, exactly 25 steps."""
    for name in SIZES:
        for batch in BATCHES:
            pair = models(SIZES[name])  # anew: how weights are laid out depends on the batch
            setting = Setting(Lengths(25, 25), batch, repeats=turns, clock=time.process_time)
            found = measure(pair, setting)
            times = {who: found[who]["beam search"].median for who in pair}
            yield row(f"decoding, {name}, batch {batch}", **times)


def convolution(turns: int, channels: int = 160, heads: int = 4, batch: int = 64) -> Iterator[Row]:
    """Lightweight convolution, forward and backward, against fairseq's, weight dropout off."""
    for length in (28, 100):
        for size in KERNELS:
            pair = {
                "ours": LightweightConvolution(channels, size, heads, causal=False),
                "stock": LightweightConv1dTBC(
                    channels, size, padding_l=size // 2, num_heads=heads, weight_softmax=True
                ),
            }
            x = torch.randn(length, batch, channels, requires_grad=True)
            grad = torch.randn(length, batch, channels)
            works = {who: lambda m=m, x=x, g=grad: m(x).backward(g) for who, m in pair.items()}
            times = interleaved(works, 5 * turns)
            yield row(f"lightweight convolution, T {length}, K {size}", **times)


def heads(turns: int) -> Iterator[Row]:
    """Half of the heads of every attention removed, and masked beside it; "stock" has them all."""
    torch.manual_seed(1)
    models = {"whole": build.architecture(PRUNED, 10_000)}
    gone = [head for head in list_heads(models["whole"]) if head.head % 2 == 0]
    models |= {name: copy.deepcopy(models["whole"]) for name in ("removed", "masked")}
    remove_heads_(models["removed"], gone)
    mask_heads(models["masked"], gone)
    for model in models.values():
        model.eval()
    for batch in (1, 4, 16, 64):
        source = torch.randint(4, 10_000, (batch, 25))
        lengths = torch.full((batch,), 25)
        works = {
            name: lambda m=model, s=source, n=lengths: m.encoder(s, src_lengths=n)
            for name, model in models.items()
        }
        with torch.no_grad():
            times = interleaved(works, 2 * turns)
        for name in ("removed", "masked"):
            what = f"encoder, half of the heads {name}, batch {batch}"
            yield row(what, times[name], times["whole"])
    for batch in (1, 16):
        setting = Setting(Lengths(25, 25), batch, repeats=turns, clock=time.process_time)
        found = measure(models, setting)
        times = {name: found[name]["beam search"].median for name in models}
        for name in ("removed", "masked"):
            what = f"decoding, half of the heads {name}, batch {batch}"
            yield row(what, times[name], times["whole"])


def length(turns: int) -> Iterator[Row]:
    """Training at growing length, the number of tokens kept: time, and peak memory."""
    _, words, _, _ = SIZES["w496"]
    pair = models(SIZES["w496"])
    for tokens in LENGTHS:
        batch = max(1, 2000 // tokens)
        works = {who: step(m, words, batch, tokens) for who, m in pair.items()}
        yield row(f"training, w496, length {tokens}", **interleaved(works, turns))
        peaks = {who: peak_memory(alone, SIZES["w496"], who, batch, tokens) for who in pair}
        yield row(f"peak memory, w496, length {tokens}", **peaks, unit="MB")


def alone(size: Size, who: str, batch: int, tokens: int) -> Work:
    """A training step of one model, where the other was never made."""
    return step(models(size)[who], size[1], batch, tokens)


PARTS = {part.__name__: part for part in (train, decode, convolution, length, heads, summaries)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all")
    parser.add_argument("--turns", type=int, default=10, help="measured turns (default: 10)")
    parser.add_argument("--json", help="also write the rows here, with how they were made")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(unknown)}: choose of {', '.join(PARTS)}")
    report.check_outputs([args.json], args.force)
    rows: list[Row] = []
    with threads(1):
        for part in args.parts or PARTS:
            for found in PARTS[part](args.turns):
                rows.append(found)
                print(*found.values(), file=sys.stderr, flush=True)
    print(
        report.format_table(
            [["", "ours", "stock", "unit", "stock / ours"]]
            + [[str(value) for value in r.values()] for r in rows]
        )
    )
    if args.json:
        made = report.provenance(["benchmark.py", *sys.argv[1:]], seed=1)
        report.write_json(args.json, {"provenance": made, "rows": rows}, args.force)


if __name__ == "__main__":
    main()
