"""Do the heads of one attention module do the same? Compared two by two.

After Li et al. 2018 (*Multi-Head Attention with Disagreement Regularization*), with two changes:
outputs are compared after the output projection, where all heads write into the same space, and
attention by divergences of the distributions (Michel et al. 2019, appendix).

Letters: H heads, N queries that are no padding, S keys, C channels.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention_maps import Seen, sum_over_processes
from .names import Place, attentions

MEASURES = {
    "output_cosine": "cosine of what two heads add to the output of their attention, -1 to 1",
    "attention_js": "Jensen-Shannon divergence of their weights, in nats: 0 to log 2 = 0.69",
    "attention_kl": "Kullback-Leibler divergence, in nats, the mean of both directions",
}
# what float16 can tell from 0, so that a divergence is finite and the same in any precision
LEAST_WEIGHT = 2.0**-24


class AgreementMeter:
    """A watcher (see ``attention_maps.watch``): means over queries for all pairs of heads."""

    def __init__(self, model: nn.Module):
        device = next(model.parameters()).device
        self.attentions = [a for a in attentions(model) if a.heads]
        self.totals: dict[Place, Tensor] = {  # a matrix for each measure, and one that counts
            a.place: torch.zeros(
                len(MEASURES) + 1, len(a.heads), len(a.heads), dtype=torch.double, device=device
            )
            for a in self.attentions
        }

    def __call__(self, seen: Seen) -> None:
        weights = seen.weights.transpose(1, 2)[seen.real_queries]  # N x H x S
        total = self.totals[seen.attention.place]
        total[0] += cosines(seen.contributions()[seen.real_queries])
        total[1] += jensen_shannon(weights)
        total[2] += kullback_leibler(weights)
        total[3] += len(weights)

    def result(self) -> list[dict[str, Any]]:
        """A row for each pair of heads of a module; every process must ask for it.

        Raises:
            ValueError: if nothing was seen.
        """
        rows = []
        sums = sum_over_processes(self.totals)
        for attention in self.attentions:
            *measures, count = sums[attention.place].tolist()
            names = attention.names()
            if not count[0][0]:
                raise ValueError("agreement needs at least one batch with a token in it")
            for i in range(len(names)):
                for j in range(i + 1, len(names)):
                    means = (measure[i][j] / count[i][j] for measure in measures)
                    pair = {"head": str(names[i]), "other": str(names[j])}
                    rows.append(pair | dict(zip(MEASURES, means, strict=True)))
        return rows


def cosines(outputs: Tensor) -> Tensor:
    """Sums over N of the cosines of outputs (N, H, C): (H, H); one that is 0 agrees with none."""
    outputs = F.normalize(outputs.to(torch.promote_types(outputs.dtype, torch.float)), dim=2)
    return (outputs @ outputs.transpose(1, 2)).double().sum(0)


def jensen_shannon(weights: Tensor) -> Tensor:
    """Sums over N of the divergences of weights (N, H, S): (H, H)."""
    entropy = torch.special.entr(weights).sum(2)
    rows = []
    for head in range(weights.size(1)):  # one head at a time, for the sake of memory
        middle = (weights[:, head, None] + weights) / 2
        mean = (entropy[:, head, None] + entropy) / 2
        rows.append((torch.special.entr(middle).sum(2) - mean).clamp(min=0.0).double().sum(0))
    return torch.stack(rows)


def kullback_leibler(weights: Tensor) -> Tensor:
    """Sums over N of KL(p || q), p and q weights (N, H, S), in both directions, halved: (H, H)."""
    logarithms = weights.clamp(min=LEAST_WEIGHT).log()
    crossed = weights @ logarithms.transpose(1, 2)
    own = crossed.diagonal(dim1=1, dim2=2)
    directed = (own[:, :, None] - crossed).double().sum(0)
    return (directed + directed.t()) / 2
