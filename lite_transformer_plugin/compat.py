"""Faults of the libraries below us, mended where a plugin can; the only place that knows versions.

Each entry names the report it answers and what makes it removable. `mend()` runs once, when the
package is imported, which fairseq does before it reads data or checkpoints.
"""

import argparse
import collections
import functools
import logging
import os
import sys
import time
import types
import typing

import numpy as np
import torch
from fairseq import checkpoint_utils, options, utils
from fairseq.data import data_utils
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.file_io import PathManager
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import FairseqTask

logger = logging.getLogger(__name__)


def mend() -> None:
    """Apply every mend; calling it again changes nothing."""
    keep_last_batch()
    allow_checkpoint_classes()
    restore_numpy_compat()
    know_own_folders()
    show_model_flags_in_help()
    rewind_before_saving_again()
    copy_checkpoints_whole()
    refuse_undecodable_input()


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


def rewind_before_saving_again() -> None:
    """A checkpoint whose saving failed and was tried again is whole.

    fairseq tries three times, each time behind what the last one has written (the effect is
    pytorch#61923): the result cannot be read, takes the place of the previous checkpoint, and the
    command goes on. Removable when fairseq rewinds the file.
    """
    stock = checkpoint_utils._torch_persistent_save
    if hasattr(stock, "rewinds"):
        return

    @functools.wraps(stock)
    def _torch_persistent_save(obj, f):
        if isinstance(f, str) or not f.seekable():
            return stock(obj, f)
        start = f.tell()
        for tries_left in (2, 1, 0):
            try:
                f.seek(start)
                return torch.save(obj, f)
            except Exception as error:
                if not tries_left:
                    raise
                logger.warning("saving failed and is tried again: %s", error)
                time.sleep(2.5)

    _torch_persistent_save.rewinds = True
    checkpoint_utils._torch_persistent_save = _torch_persistent_save


def copy_checkpoints_whole() -> None:
    """A disk that fills leaves the previous checkpoint_last.pt and checkpoint_best.pt as they were.

    fairseq writes one checkpoint under another name and renames it, but copies it straight onto the
    others (metaseq#53 shows what is left). Removable when it renames those too.
    """
    stock = PathManager.copy
    if hasattr(stock, "renames"):
        return

    @functools.wraps(stock)
    def copy(src_path, dst_path, overwrite=False):
        if not overwrite or PathManager.path_requires_pathmanager(dst_path):
            return stock(src_path, dst_path, overwrite)
        target = os.path.realpath(dst_path)
        try:
            stock(src_path, target + ".tmp", overwrite=True)
            os.replace(target + ".tmp", target)
        except BaseException:
            if os.path.lexists(target + ".tmp"):
                os.remove(target + ".tmp")  # what little space it took
            raise
        return True

    copy.renames = True
    PathManager.copy = staticmethod(copy)


def refuse_undecodable_input() -> None:
    """Bytes on standard input that are not UTF-8 stop fairseq-interactive, as those in a file do.

    In the locales C, POSIX and C.UTF-8, which containers have, Python hides them in lone
    surrogates, and their words are translated as <unk> (no report found). Removable when fairseq
    decodes its standard input strictly.
    """
    stock = FairseqTask.get_interactive_tokens_and_lengths
    if hasattr(stock, "decodes_strictly"):
        return

    @functools.wraps(stock)
    def get_interactive_tokens_and_lengths(self, lines, encode_fn):
        for line in lines:
            line.encode("utf-8", "surrogateescape").decode("utf-8")
        return stock(self, lines, encode_fn)

    get_interactive_tokens_and_lengths.decodes_strictly = True
    FairseqTask.get_interactive_tokens_and_lengths = get_interactive_tokens_and_lengths
