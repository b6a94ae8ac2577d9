"""Write the configuration that fairseq-train makes of its flags, for fairseq-hydra-train.

So both start the same training, and the settings stand in one place. Usage:
    to_hydra.py FILE.yaml FLAGS OF FAIRSEQ-TRAIN ...
"""

import logging
import sys
import warnings
from argparse import Namespace
from pathlib import Path

warnings.simplefilter("ignore")  # fairseq composes with hydra's older names

from fairseq import options  # noqa: E402
from fairseq.dataclass.utils import convert_namespace_to_omegaconf  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402


def plain(value):
    """A section as nested dictionaries; older models keep theirs as a Namespace."""
    if isinstance(value, Namespace):
        return vars(value)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def main() -> None:
    logging.disable(logging.INFO)
    target, flags = Path(sys.argv[1]), sys.argv[2:]
    args = options.parse_args_and_arch(options.get_training_parser(), flags)
    cfg = convert_namespace_to_omegaconf(args)
    unfinished = target.with_suffix(".tmp")
    OmegaConf.save({name: plain(cfg[name]) for name in cfg}, unfinished)
    unfinished.replace(target)


if __name__ == "__main__":
    main()
