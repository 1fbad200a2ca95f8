"""A small project with our tools/ and Makefile, whose environment is made in a second, without a network."""

import ensurepip
import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

from conftest import ROOT

BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{folder}/bttlab-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("bttlab-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: bttlab\\nVersion: 1\\n")
        wheel.writestr("bttlab-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("bttlab-1.dist-info/RECORD", "")
    return "bttlab-1-py3-none-any.whl"
"""
PROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "bttlab"
version = "1"

[tool.uv]
constraint-dependencies = ["torch==1"]
dependency-metadata = [{ name = "torch", version = "1", requires-dist = [] }]
"""


def wheel(folder: Path, name: str, needs: str = "") -> str:
    """Make a package with a module of its name; return its line in a lock."""
    info = f"{name}-1.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return f"{name}==1 \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n    # via bttlab\n"


class Project:
    """A project with our tools/ and Makefile, and a folder with its packages, as a wheelhouse is."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.house = folder / "project", folder / "house"
        self.house.mkdir()
        shutil.copytree(ROOT / "tools", self.folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("Makefile", "VERSION"):
            shutil.copy(ROOT / name, self.folder)
        (self.folder / "backend.py").write_text(BACKEND)
        (self.folder / "pyproject.toml").write_text(PROJECT)
        (self.folder / "requirements.lock").write_text(wheel(self.house, "locked"))
        pip = next(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"))
        shutil.copy(pip, self.house)
        version, sha = pip.name.split("-")[1], hashlib.sha256(pip.read_bytes()).hexdigest()
        lines = [f"pip=={version} \\\n    --hash=sha256:{sha}\n", f"torch==1+cpu \\\n    --hash=sha256:{'0' * 64}\n"]
        lines += [wheel(self.house, name, needs) for name, needs in (("torch", "Requires-Dist: cuda\n"), ("cuda", ""))]
        (self.folder / "requirements-torch.lock").write_text("".join(lines))

    def make(self, *arguments: str) -> subprocess.CompletedProcess:
        process = self.start(*arguments)
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, *arguments: str) -> subprocess.Popen:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "PYTHON", "MAKE"))
        }
        uv = os.environ.get("UV") or shutil.which("uv") or ".venv-uv/bin/uv"
        uv = ROOT / uv  # make exports a path from there
        command = ["make", "--no-print-directory", f"UV={uv}", "environment", f"WHEELHOUSE={self.house}", *arguments]
        clean["UV_CACHE_DIR"] = str(self.folder / "cache")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.folder, env=clean, start_new_session=True, **pipes)

    def has(self, *modules: str) -> bool:
        python = self.folder / ".venv" / "bin" / "python"
        return subprocess.run([python, "-c", f"import {', '.join(modules)}"], capture_output=True).returncode == 0
