"""Faults of the libraries below us, mended where a plugin can; the only place that knows versions.

Each entry names the report it answers and what makes it removable. `mend()` runs once, when the
package is imported, which fairseq does before it reads data or checkpoints.
"""

import argparse
import collections
import functools
import os
import sys
import types
import typing

import numpy as np
import torch
from fairseq import options, utils
from fairseq.data import data_utils
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.models import ARCH_MODEL_REGISTRY


def mend() -> None:
    """Apply every mend; calling it again changes nothing."""
    keep_last_batch()
    allow_checkpoint_classes()
    restore_numpy_compat()
    know_own_folders()
    show_model_flags_in_help()


def keep_last_batch() -> None:
    """No sentence is dropped by the batch-size rule.

    Since December 2022 `data_utils.batch_by_size` throws the last batch away when its size is not
    a multiple of 8 (fairseq#5036): 60 test sentences gave 56 translations, and 5 gave an error.
    Removable when fairseq returns that batch. Without the fault this changes nothing.
    """
    stock = data_utils.batch_by_size
    if hasattr(stock, "drops_last_batch"):
        return

    def batch_by_size(indices, *args, **kwargs):
        if not isinstance(indices, np.ndarray):
            indices = np.fromiter(indices, dtype=np.int64, count=-1)
        batches = stock(indices, *args, **kwargs)
        if kwargs.get("fixed_shapes") is None:
            rest = indices[sum(len(batch) for batch in batches) :]
            if len(rest) > 0:
                batches = list(batches) + [rest]
        return batches

    batch_by_size.drops_last_batch = False
    batch_by_size.__doc__ = stock.__doc__
    data_utils.batch_by_size = batch_by_size


def checkpoint_classes() -> list:
    """The classes beside tensors and plain values that fairseq puts into checkpoints.

    All of them only hold values: rebuilding one runs no code that a checkpoint could choose.
    """
    from omegaconf import DictConfig, ListConfig, base, nodes

    classes = [argparse.Namespace, DictConfig, ListConfig]
    classes += [_TensorPlaceholder]  # in what several processes send each other at a restart
    classes += [base.ContainerMetadata, base.Metadata]
    classes += [
        node
        for node in vars(nodes).values()
        if isinstance(node, type) and issubclass(node, nodes.ValueNode)
    ]
    classes += [typing.Any, dict, list, int, float, bool, str, collections.defaultdict]
    classes += [np.ndarray, np.dtype]
    classes += {type(np.dtype(code)) for code in "?bBhHiIlLqQefd"}
    scalar, rebuild = np.float64(0).__reduce__()[0], np.zeros(0).__reduce__()[0]
    for core in ("core", "_core"):  # numpy 2's new name: a checkpoint has that of its writer
        classes += [(scalar, f"numpy.{core}.multiarray.scalar")]
        classes += [(rebuild, f"numpy.{core}.multiarray._reconstruct")]
    return classes


def allow_checkpoint_classes() -> None:
    """Checkpoints load under torch >= 2.6 with its safe loader left on.

    fairseq's configuration is a Namespace or an omegaconf container, and its meters hold numpy
    scalars, which the safe loader refuses (fairseq#5610, fairseq#5603). Anything else is still
    refused. Removable when fairseq registers or no longer saves them.
    """
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals(checkpoint_classes())


def restore_numpy_compat() -> None:
    """`np.compat.long`, which fairseq's datasets read, is gone from numpy 2.

    Its older kin `np.float` is fairseq#4945. Removable when fairseq says int.
    """
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)


def know_own_folders() -> None:
    """An installed copy and a checkout of this package side by side are one plugin.

    When a command has imported one copy and `--user-dir` names another, fairseq stops with "not
    globally unique" (since fairseq#2815). The one already imported serves. Removable when fairseq
    looks at the module it found instead of its path.
    """
    package = __package__
    imported = os.path.dirname(os.path.abspath(sys.modules[package].__file__))
    beside_fairseq = os.path.join(os.path.dirname(utils.__file__), "..")  # as fairseq spells it
    known = getattr(utils.import_user_module, "memo", set())
    for parent in (os.path.dirname(imported), os.getcwd(), beside_fairseq):
        known.add(os.path.join(parent, package))
    utils.import_user_module.memo = known


def show_model_flags_in_help() -> None:
    """`fairseq-train --user-dir ... --arch NAME --help` lists the flags of that architecture.

    fairseq prints its help before it has asked the model for flags, so none is ever shown
    (no report found). Removable when fairseq adds them first.
    """
    stock = options.parse_args_and_arch
    if hasattr(stock, "shows_model_flags"):
        return

    @functools.wraps(stock)
    def parse_args_and_arch(parser, input_args=None, *args, **kwargs):
        words = sys.argv[1:] if input_args is None else input_args
        if "--help" in words or "-h" in words:
            _add_model_flags(parser, words)
        return stock(parser, input_args, *args, **kwargs)

    parse_args_and_arch.shows_model_flags = True
    options.parse_args_and_arch = parse_args_and_arch


def _add_model_flags(parser: argparse.ArgumentParser, words: list[str]) -> None:
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--arch", "-a")
    arch = finder.parse_known_args(words)[0].arch
    if arch in ARCH_MODEL_REGISTRY:
        group = parser.add_argument_group("Model-specific configuration")
        ARCH_MODEL_REGISTRY[arch].add_args(group)
