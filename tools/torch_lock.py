"""Write requirements-torch.lock: PyTorch, what its build for CUDA needs, pip and uv, with the SHA-256 of every file.

python tools/torch_lock.py UV PINS…  (`make lock` calls it)

requirements.lock is for every build of PyTorch and cannot have these. The hashes of PyPI's files are PyPI's. Those of
the builds for the CPU, from the index download.pytorch.org/whl/cpu, are kept in CPU_WHEELS: an entry of their own, as
uv takes X+cpu for another version.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK, COMMON = ROOT / "requirements-torch.lock", ROOT / "requirements.lock"
HEADER = (
    "# PyTorch, what its build for CUDA needs, pip and uv: `make lock` writes this file. torch+cpu is of its index\n"
    "# for CPUs, for Python 3.11 and 3.12. The file for 3.10 has no hash on record, so that Python gets PyPI's torch.\n"
)
# Files of the index for CPUs, for x86-64 Linux, of the torch that pyproject.toml pins. The one for Python 3.11 was
# hashed; public lock files of several projects have both.
CPU_WHEELS = {
    "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl": (
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
    ),
    "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl": (
        "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2"
    ),
}


def entries(text: str) -> list[tuple[str, str]]:
    """Return the name and the text of each package in a lock."""
    blocks = re.findall(r"^[A-Za-z0-9][^\n]*(?: \\\n +--hash=\S+)+", text, re.MULTILINE)
    return [(re.split(r"[^\w.-]", block, maxsplit=1)[0], block) for block in blocks]


def locked(compiled: str, common: str) -> str:
    """Return the lock of what uv has compiled, without what another lock has, and with the hashes of CPU_WHEELS."""
    known, blocks = {name for name, _ in entries(common)}, []
    for name, block in entries(compiled):
        if name in known:
            continue
        if name == "torch":
            version = block.split()[0].partition("==")[2]
            hashes = [f"    --hash=sha256:{sha}" for file, sha in CPU_WHEELS.items() if f"torch-{version}+cpu" in file]
            blocks.append(" \\\n".join([f"torch=={version}+cpu", *sorted(hashes)]))
        blocks.append(block)
    return HEADER + "\n".join(blocks) + "\n"


def main(uv: str, *pins: str) -> None:
    command = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", "3.10", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--constraint", str(COMMON), "-"]
    # Elsewhere: pyproject.toml hides from uv what the build for CUDA requires.
    done = subprocess.run(command, input="\n".join(pins), stdout=subprocess.PIPE, text=True, check=True, cwd="/")
    LOCK.write_text(locked(done.stdout, COMMON.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
