"""The stage of `fairseq-prune-heads` that says what heads look at: --roles, --parses."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..heads import agreement, roles, syntax
from ..heads.attention_maps import watch
from ..heads.names import Head, parse_heads
from ..heads.parses import Parse, match, read_conllu
from ..heads.role_pictures import roles_over_importance
from .prune_heads_measures import batches_of, dataset_of, importance_rows, scores_of
from .prune_heads_study import Output, Study


class Parses(NamedTuple):
    """--parses, and the words that the pieces of each sentence belong to."""

    parses: list[Parse]
    owners: list[list[int]]
    digest: str  # of the file


def open_parses(study: Study) -> Parses | None:
    """Read --parses and see, before anything is measured, that they are of --gen-subset.

    Raises:
        ValueError: if they are not, naming the first sentence that differs.
    """
    path = study.args.parses
    if not path:
        return None
    found = read_conllu(path)
    split = study.cfg.dataset.gen_subset
    names = (f"--parses {path}", f"--gen-subset {split}")
    owners = match(
        found, dataset_of(study, "--gen-subset", split), study.task.source_dictionary, names
    )
    return Parses(found, owners, hashlib.sha256(Path(path).read_bytes()).hexdigest())


def write_roles(study: Study, output: Output, parses: Parses | None) -> None:
    """roles, agreement and, with parses, syntax: rows of all heads; and a picture."""
    measured = measure(study, parses)
    importance = scores_of(importance_rows(study))
    relations = None if parses is None else syntax.relations_of(measured["syntax"])
    figures = {
        head: {name: row[name] for name in roles.FIGURES}
        for head, row in _by_head(measured["roles"]).items()
    }
    rows = roles.rows(figures, importance, relations)
    where = study.cfg.dataset.gen_subset
    least = {"positional": roles.POSITIONAL, "rare words": roles.RARE}
    least |= {"syntactic": syntax.MARGIN, "syntactic arcs": syntax.LEAST_COUNT}
    output.write("roles", rows, subset=where, figures=roles.FIGURES, thresholds=least)
    output.write("agreement", measured["agreement"], subset=where, measures=agreement.MEASURES)
    if parses is not None:
        output.write("syntax", measured["syntax"], subset=where)
    kinds = {head: row["roles"].split("; ") for head, row in _by_head(rows).items() if row["roles"]}
    title = f"Roles of heads on {where}{'' if parses else ' (syntax aside)'}, over their importance"
    output.draw("roles", roles_over_importance(importance, kinds, title))
    output.say(summary(importance, kinds, where))


def measure(study: Study, parses: Parses | None) -> dict[str, list[dict[str, Any]]]:
    """Rows of roles, agreement and syntax, in one pass over --gen-subset; measured once."""
    kind, key = f"roles {study.name}", parses.digest if parses else ""
    known = study.folder.known(kind)
    if key not in known:
        meters: dict[str, Any] = {
            "roles": roles.FigureMeter(study.model),
            "agreement": agreement.AgreementMeter(study.model),
        }
        if parses:
            meters["syntax"] = syntax.SyntaxMeter(study.model, parses.parses, parses.owners)
        batches = batches_of(study, "--gen-subset", study.cfg.dataset.gen_subset)
        for sample in study.progress(batches.next_epoch_itr(shuffle=False), "roles"):
            if sample:
                watch(study.model, sample, *meters.values())
        found = {name: meter.result() for name, meter in meters.items()}
        found["roles"] = [{"head": str(head), **row} for head, row in found["roles"].items()]
        known[key] = found
        study.folder.remember(kind, key, found)
    return known[key]


def _by_head(rows: Sequence[Mapping[str, Any]]) -> dict[Head, Mapping[str, Any]]:
    return {parse_heads(row["head"])[0]: row for row in rows}


def summary(
    importance: Mapping[Head, float], kinds: Mapping[Head, Sequence[str]], where: str
) -> str:
    """Do the heads that matter have roles? One line."""
    counts = {kind: sum(kind in found for found in kinds.values()) for kind in roles.KINDS}
    found = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "none"
    top = set(roles.most_important(importance))
    among, beside = (sum(head in kinds for head in heads) for heads in (top, set(importance) - top))
    return (
        f"roles of {len(importance)} heads on {where}: {found}; {among} of the {len(top)} most "
        f"important heads have a role, {beside} of the other {len(importance) - len(top)}"
    )
