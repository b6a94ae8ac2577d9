"""Summarisers of the paper as the source grows: training and generation, time and peak memory.

Lite Transformer's model for CNN/DailyMail beside the transformer it is published with (512
channels, FFN 2048): 0.8G and 2.0G Mult-Adds for 30 source and 60 target tokens.
"""

import time
from collections.abc import Iterator

import torch
from side_by_side import Row, Work, interleaved, peak_memory, row, step

from lite_transformer_plugin import build
from lite_transformer_plugin.cost import Lengths
from lite_transformer_plugin.cost.latency import Setting, measure

WORDS = 30_000
SOURCES = (128, 512, 1024, 2048)  # tokens
SUMMARY = 60
BEAM = 4
POSITIONS = ["--max-source-positions", "2048"]
SHARED = ["--share-all-embeddings", "--dropout", "0.15", "--attention-dropout", "0.1"]  # as ours
ARCHITECTURES = {
    "ours": ("lite_transformer_cnn_dm", POSITIONS),
    "stock": ("transformer", [*SHARED, *POSITIONS]),
}


def model(who: str) -> torch.nn.Module:
    torch.manual_seed(1)
    arch, flags = ARCHITECTURES[who]
    return build.architecture(arch, WORDS, flags)


def training(who: str, tokens: int) -> Work:
    """One step on one article."""
    return step(model(who), WORDS, 1, tokens, SUMMARY)


def generation(who: str, tokens: int) -> Work:
    """One article, beam search of exactly as many steps as a summary has tokens."""
    setting = Setting(Lengths(tokens, SUMMARY), warmup=0, repeats=1)
    made = {who: model(who)}
    return lambda: measure(made, setting)


def summaries(turns: int) -> Iterator[Row]:
    for tokens in SOURCES:
        works = {who: training(who, tokens) for who in ARCHITECTURES}
        yield row(f"training, source {tokens}", **interleaved(works, turns))
        pair = {who: model(who) for who in ARCHITECTURES}
        setting = Setting(Lengths(tokens, SUMMARY), repeats=turns, clock=time.process_time)
        found = measure(pair, setting)
        times = {who: found[who]["beam search"].median for who in pair}
        yield row(f"generation, source {tokens}", **times)
        for kind in (training, generation):
            peaks = {who: peak_memory(kind, who, tokens) for who in ARCHITECTURES}
            yield row(f"peak memory of {kind.__name__}, source {tokens}", **peaks, unit="MB")
