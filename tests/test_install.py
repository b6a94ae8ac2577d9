"""A plain `pip install .` serves any folder, the checkout too, and both at once."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import fairseq
import fairseq_cli
import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lite_transformer_plugin"
NOT_COPIED = shutil.ignore_patterns("__pycache__", "examples")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A site-packages folder with fairseq and an installed, not editable, copy of this package."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(PACKAGE, source / PACKAGE.name, ignore=NOT_COPIED)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    for module in (fairseq, fairseq_cli):  # fairseq looks for plugins beside itself
        source = Path(module.__file__).parent
        shutil.copytree(source, folder / source.name, ignore=NOT_COPIED)
    return folder


def test_the_wheel_holds_every_file_of_the_package(site):
    installed, here = (
        {p.relative_to(folder) for p in folder.rglob("*") if p.suffix in (".py", ".json")}
        for folder in (site / PACKAGE.name, PACKAGE)
    )
    assert installed == here


@pytest.mark.parametrize("folder", ["elsewhere", "checkout"])
def test_the_bare_name_works(site, folder, tmp_path):
    """In the checkout both copies are found; the one that Python imports first serves."""
    script = (
        "import lite_transformer_plugin, sys; from fairseq_cli.train import cli_main;"
        "sys.argv[1:] = '--user-dir lite_transformer_plugin -a lite_transformer --help'.split();"
        "print(lite_transformer_plugin.__file__, flush=True); cli_main()"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=ROOT if folder == "checkout" else tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(str(site))
    assert "--encoder-kernel-size-list" in result.stdout
