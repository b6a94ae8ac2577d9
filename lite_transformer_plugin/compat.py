"""Faults of the libraries below us, mended where a plugin can; the only place that knows versions.

Each entry names the report it answers and what makes it removable. `mend()` runs once, when the
package is imported, which fairseq does before it reads data or checkpoints.
"""

import argparse
import collections
import dataclasses
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
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY, FairseqTask
from omegaconf import DictConfig, open_dict

from . import checkpoint_files

logger = logging.getLogger(__name__)


def mend() -> None:
    """Apply every mend; calling it again changes nothing."""
    keep_last_batch()
    allow_checkpoint_classes()
    restore_numpy_compat()
    know_own_folders()
    show_flags_in_help()
    rewind_before_saving_again()
    copy_checkpoints_whole()
    refuse_undecodable_input()
    obey_task_options()
    check_checkpoint_headers()


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
    from omegaconf import ListConfig, base, nodes

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


def show_flags_in_help() -> None:
    """`fairseq-train --user-dir ... --arch NAME --task NAME --help` lists the flags of both.

    fairseq prints its help before it has asked the model and the task for flags, so none is ever
    shown (no report found). Removable when fairseq adds them first.
    """
    stock = options.parse_args_and_arch
    if hasattr(stock, "shows_flags"):
        return

    @functools.wraps(stock)
    def parse_args_and_arch(parser, input_args=None, *args, **kwargs):
        words = sys.argv[1:] if input_args is None else input_args
        if "--help" in words or "-h" in words:
            _add_flags(parser, words)
        return stock(parser, input_args, *args, **kwargs)

    parse_args_and_arch.shows_flags = True
    options.parse_args_and_arch = parse_args_and_arch


def _add_flags(parser: argparse.ArgumentParser, words: list[str]) -> None:
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--arch", "-a")
    finder.add_argument("--task")
    found = finder.parse_known_args(words)[0]
    if found.arch in ARCH_MODEL_REGISTRY:
        group = parser.add_argument_group("Model-specific configuration")
        ARCH_MODEL_REGISTRY[found.arch].add_args(group)
    if found.task in TASK_REGISTRY:
        group = parser.add_argument_group("Task-specific configuration")
        TASK_REGISTRY[found.task].add_args(group)


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


def check_checkpoint_headers() -> None:
    """A checkpoint that is cut short, or has a changed byte in its configuration, is refused.

    torch is built without the test of its files' checksums (pytorch#126952): such a byte changes a
    setting, and the translations, without a word. Removable when torch looks at them.
    """
    stock = checkpoint_utils.load_checkpoint_to_cpu
    if hasattr(stock, "checks_headers"):
        return

    @functools.wraps(stock)
    def load_checkpoint_to_cpu(path, *args, **kwargs):
        if not PathManager.path_requires_pathmanager(path) and os.path.isfile(path):
            checkpoint_files.check_header(path)
        return stock(path, *args, **kwargs)

    load_checkpoint_to_cpu.checks_headers = True
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu


# --- options of tasks -----------------------------------------------------------------------------


def obey_task_options() -> None:
    """Options of our tasks take effect wherever they are given, or stop the command.

    fairseq-validate takes task and options from the checkpoint and drops `--task NAME` and the
    flags of that task without a word; overrides drop what the task does not know, and reach none
    where the command line builds the task (no report found). For our tasks validation builds what
    it is told, by flags or by overrides, and what would be dropped is an error. Removable when
    fairseq does so for every task.
    """
    stock_read = checkpoint_utils.load_checkpoint_to_cpu
    stock_load = checkpoint_utils.load_model_ensemble_and_task
    if hasattr(stock_read, "obeys_task_options"):
        return

    @functools.wraps(stock_read)
    def load_checkpoint_to_cpu(path, arg_overrides=None, *args, **kwargs):
        told = arg_overrides and _flat(arg_overrides)
        state = stock_read(path, told, *args, **kwargs)
        if told:
            _set_task(state["cfg"], told)
        return state

    @functools.wraps(stock_load)
    def load_model_ensemble_and_task(filenames, arg_overrides=None, task=None, *args, **kwargs):
        name, options = _own(_flat(arg_overrides or {}))
        if task is not None and (name or options):
            raise ValueError(
                f"overrides do not reach the task of this command ({name or options[0]}): give "
                "--task and its flags instead"
            )
        return stock_load(filenames, arg_overrides, task, *args, **kwargs)

    load_checkpoint_to_cpu.obeys_task_options = True
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
    checkpoint_utils.load_model_ensemble_and_task = load_model_ensemble_and_task


def _own_tasks() -> dict[str, set[str]]:
    """The tasks of this package, and the options that each has beside those of stock tasks."""
    own = {}
    for name, kind in TASK_DATACLASS_REGISTRY.items():
        stock = next(base for base in kind.__mro__ if not _is_ours(base))
        if stock is not kind:
            own[name] = _fields(kind) - _fields(stock)
    return own


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith(f"{__package__}.")


def _fields(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _own(told: dict) -> tuple[str | None, list[str]]:
    """Which of our tasks is told, and which options of our tasks."""
    own, name = _own_tasks(), told.get("task")
    return (
        name if isinstance(name, str) and name in own else None,
        sorted(told.keys() & set().union(*own.values())),
    )


def _flat(overrides: dict) -> dict:
    """{"task": {"_name": NAME, OPTION: ...}} as flags have it: {"task": NAME, OPTION: ...}."""
    task = overrides.get("task")
    if not isinstance(task, dict):
        return overrides
    rest = {key: value for key, value in overrides.items() if key != "task"}
    named = {"task": task["_name"]} if "_name" in task else {}
    flat = rest | {key: value for key, value in task.items() if key != "_name"} | named
    name, options = _own(flat)
    if name:
        _check_known(name, task)
    return flat if name or options else overrides


def _check_known(name: str, task: dict) -> None:
    unknown = sorted(task.keys() - _fields(TASK_DATACLASS_REGISTRY[name]))
    if unknown:
        raise ValueError(f"the task {name} has no option {unknown[0]!r}")


def _set_task(cfg: DictConfig, told: dict) -> None:
    """Let a checkpoint's configuration have the task and the options that are told."""
    name, options = _own(told)
    name, tasks = name or cfg.task._name, _own_tasks()
    for option in options:
        if option not in tasks.get(name, ()):
            owner = next(task for task in tasks if option in tasks[task])
            raise ValueError(
                f"the checkpoint's task {name} has no option {option!r}: give it with its task, as "
                f"--task {owner} or {{'task': {{'_name': '{owner}', ...}}}}"
            )
    if name in tasks and isinstance(told.get("task"), dict):
        _check_known(name, told["task"])
    if name in tasks and isinstance(cfg.task, DictConfig):
        with open_dict(cfg):
            cfg.task._name = name
            for option in tasks[name] if options else ():  # what is told replaces all that was
                cfg.task.pop(option, None)
            for option in _fields(TASK_DATACLASS_REGISTRY[name]) & told.keys():
                cfg.task[option] = told[option]
