"""Installs the plugin so that `--user-dir lite_transformer_plugin` works from any folder."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"', (ROOT / "lite_transformer_plugin/__init__.py").read_text()
).group(1)

# Three distributions import as `fairseq`; only one may be installed. The wheels of the first exist
# for x86-64 Linux and Python 3.11 and 3.12, the second compiles for minutes, the original does
# not import on Python 3.11.
ON_WHEELS = "sys_platform == 'linux' and platform_machine == 'x86_64' and python_version < '3.13'"
FAIRSEQ = [
    f"ve-fairseq>=0.12.3; python_version >= '3.11' and {ON_WHEELS}",
    "fairseq-fixed>=0.12.3.1; python_version >= '3.13' or python_version >= '3.11' and "
    "(sys_platform != 'linux' or platform_machine != 'x86_64')",
]

PLOTS = ["matplotlib>=3.8"]
TRANSLATION = ["sacremoses>=0.1", "subword-nmt>=0.3.8"]
ROUGE = ["rouge-score>=0.1.2"]
METRICS = ["scikit-learn>=1.4"]
IMPORT = ["safetensors>=0.4", "tokenizers>=0.20"]
TESTS = ["pytest>=8", "pytest-xdist>=3", "hypothesis>=6", "ruff>=0.6", "torchprofile>=0.1"]

setup(
    name="lite-transformer-plugin",
    version=VERSION,
    description="Lite Transformer and attention-head pruning as a plugin for stock fairseq",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["lite_transformer_plugin", "lite_transformer_plugin.*"]),
    package_data={"lite_transformer_plugin": ["*.json", "heads/*.html"]},
    python_requires=">=3.11",
    install_requires=[
        *FAIRSEQ,
        "torch>=2.6",
        "hydra-core>=1.3,<1.4",
        "omegaconf>=2.3,<2.4",
        "numpy>=1.26,<3",
        "sacrebleu>=2.4",
        "sentencepiece>=0.2",
        "tensorboardX>=2.6",
        "zstandard>=0.22",
    ],
    extras_require={
        "plots": PLOTS,
        "rouge": ROUGE,
        "metrics": METRICS,
        "onnx": ["onnx>=1.16", "onnxruntime>=1.18"],
        "translation": TRANSLATION,
        "import": IMPORT,
        "dev": [*TESTS, *PLOTS, *TRANSLATION, *IMPORT, *ROUGE, *METRICS],
    },
    entry_points={
        "console_scripts": [
            "fairseq-attention-maps = lite_transformer_plugin.cli.attention_maps:cli_main",
            "fairseq-average-checkpoints = "
            "lite_transformer_plugin.cli.average_checkpoints:cli_main",
            "fairseq-compress = lite_transformer_plugin.cli.compress:cli_main",
            "fairseq-import-checkpoint = lite_transformer_plugin.cli.import_checkpoint:cli_main",
            "fairseq-profile = lite_transformer_plugin.cli.profile:cli_main",
            "fairseq-prune-heads = lite_transformer_plugin.cli.prune_heads:cli_main",
        ],
    },
)
