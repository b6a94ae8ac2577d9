"""What a model is judged by: names, units, and which way is better."""

from typing import NamedTuple


class Metric(NamedTuple):
    """How a metric is called, and which way it is better."""

    name: str  # --metric, and the column of a table
    label: str
    unit: str  # of a difference
    higher_is_better: bool
    task: str  # of fairseq, that it fits

    def difference(self, where: str = "") -> str:
        """The label of an axis."""
        words = [f"difference in {self.label}"]
        words += [f"on {where}"] if where else []
        words += [f"({self.unit})"] if self.unit else []
        return " ".join(words)


METRICS = {
    m.name: m
    for m in (
        Metric("bleu", "BLEU", "points", True, "translation"),
        Metric("rouge", "ROUGE-L", "points", True, "translation"),
        Metric("perplexity", "perplexity", "", False, "language_modeling"),
        Metric("accuracy", "accuracy (%)", "points", True, "sentence_prediction"),
        Metric("f1", "F1 (%)", "points", True, "sentence_prediction"),
        Metric("matthews", "Matthews' correlation (%)", "points", True, "sentence_prediction"),
    )
}
LIKE_TRANSLATION = ("translation", "prune_heads", "translation_lev", "denoising")


def metric_of(task: str, name: str | None = None) -> Metric:
    """The metric of that name, or the usual one of a task.

    Raises:
        ValueError: for an unknown one, or one that does not fit the task.
    """
    kind = "translation" if task in LIKE_TRANSLATION else task
    fitting = [metric.name for metric in METRICS.values() if metric.task == kind]
    if not fitting:
        raise ValueError(
            f"--task {task}: give one of {', '.join(sorted({m.task for m in METRICS.values()}))}"
        )
    if name is not None and name not in fitting:
        raise ValueError(f"--metric {name} does not fit --task {task}: {', '.join(fitting)} would")
    return METRICS[name or fitting[0]]
