"""Build an emulation overlay: python -m bttlab.card.build [NAME], or make overlays.

Compiles the HLS source for each level of vector instructions, packs the images into containers and lists them in the
manifest. The same sources and the same compiler give the same bytes. Overlays for a card come from hls_src/Makefile,
which needs Vitis; --install adds them to the manifest.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bttlab.card.image import IMAGES, Image
from bttlab.card.kernel import TRAINER_KERNEL, Kernel, OverlayError
from bttlab.card.manifest import OverlayEntry, add_entry, digest, overlays_folder, read_file, read_manifest
from bttlab.card.xclbin import EmulationOverlay, pack_xclbin, read_container
from bttlab.compiler.machine import M, read_machine
from bttlab.estimate.facts import U50
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.places import ROOT

HLS_SOURCE = ROOT / "hls_src"
CACHE = "build"

COMPILE_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"),
    # The same bits on every machine: no fused multiply-add, no reordering. The source uses neither errno nor traps.
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    "-fno-gnu-unique",  # all copies of an image would share a unique symbol, which also prevents unloading
    "-fno-threadsafe-statics",  # the guards are in libstdc++; a kernel never runs twice at the same time
    *("-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-unused-label"),  # pragmas and labels are for Vitis HLS
)
LINK_FLAGS = (
    *("-shared", "-s", "-Wl,--build-id=none", "-Wl,-z,defs"),
    *("-nodefaultlibs", "-Wl,--as-needed", "-lm", "-lc", "-lgcc"),  # no libstdc++: its version differs between hosts
)
OLDEST_GLIBC = (2, 17)  # the version that Linux distributions had by 2015
_LIBRARIES = {b"libc.so.6", b"libm.so.6"}


@dataclass(frozen=True)
class OverlayDefinition:
    """Definition of an overlay: its kernels, and the file with their top functions in the folder of HLS sources."""

    name: str
    source: str
    kernels: tuple[Kernel, ...]
    emulation_flags: tuple[str, ...] = ()

    def machine(self, hls_src: Path) -> dict[str, Any] | None:
        """Return the processor that the source describes; None if the source has no isa.h."""
        folder = (hls_src / self.source).parent
        return read_machine(folder).to_dict() if (folder / "isa.h").is_file() else None


DEFINITIONS = {
    # The ABI warning on vectors of 64 bytes does not matter: no other compiler's code is linked with this.
    # Loops for strides of 1 beside each other loop double the code of a tile, which its first run waits for.
    "trainer": OverlayDefinition(
        "trainer",
        "processor/trainer.cpp",
        (TRAINER_KERNEL,),
        emulation_flags=("-DBTTLAB_FAST", "-Wno-psabi", "-fno-version-loops-for-strides"),
    ),
}


def source_files(definition: OverlayDefinition, hls_src: Path) -> list[Path]:
    """Return the source file and all headers of `hls_src` that it includes, sorted."""
    files: set[Path] = set()
    pending = [hls_src / definition.source]
    while pending:
        path = pending.pop()
        files.add(path)
        for name in re.findall(rb'^\s*#\s*include\s*[<"]([^>"]+)[>"]', read_file(path), re.MULTILINE):
            for folder in (path.parent, hls_src):
                header = Path(os.path.normpath(folder / name.decode()))
                if header.is_file():
                    if header not in files:
                        pending.append(header)
                    break
    return sorted(files)


def sources_digest(definition: OverlayDefinition, hls_src: Path) -> str:
    """Return the digest of everything that determines an emulation overlay, except the compiler."""
    state = hashlib.sha256()
    for path in source_files(definition, hls_src):
        state.update(f"{path.relative_to(hls_src)} {digest(path.read_bytes())}\n".encode())
    state.update(repr((definition.kernels, definition.emulation_flags, COMPILE_FLAGS, LINK_FLAGS)).encode())
    state.update(repr([(image.name, image.flags) for image in IMAGES]).encode())
    return state.hexdigest()


def hardware_digest(definition: OverlayDefinition, hls_src: Path, clock_mhz: int) -> str:
    """Return the digest of everything that determines an hw overlay, except Vitis and the platform."""
    files = source_files(definition, hls_src)
    files += sorted(path for path in (hls_src / "vitis").rglob("*") if path.is_file())
    lines = [f"{path.relative_to(hls_src)} {digest(path.read_bytes())}\n" for path in files]
    return digest(f"{''.join(lines)}{definition.kernels!r} {clock_mhz}".encode())


def check_prototypes(definition: OverlayDefinition, hls_src: Path) -> None:
    """Raise OverlayError unless names, order and types of the kernels' arguments match the functions in the source."""
    path = hls_src / definition.source
    source = read_file(path).decode()
    for kernel in definition.kernels:
        match = re.search(rf"\bvoid\s+{kernel.name}\s*\(([^)]*)\)", source)
        if match is None:
            raise OverlayError(f"{path} has no function void {kernel.name}(…)")
        declared = [" ".join(part.replace("*", " * ").split()) for part in match[1].split(",")]
        for number, argument in enumerate(kernel.arguments):
            expected = rf".* \* {argument.name}" if argument.is_pointer else rf"{argument.ctype} {argument.name}"
            if number >= len(declared) or not re.fullmatch(expected, declared[number]):
                found = declared[number] if number < len(declared) else "nothing"
                raise OverlayError(
                    f"{path}: argument {number} of {kernel.name} is {argument.ctype} {argument.name}, found {found}"
                )
        if len(declared) > len(kernel.arguments):
            raise OverlayError(
                f"{path}: {kernel.name} has {len(declared)} arguments, {len(kernel.arguments)} are described"
            )


def compile_image(definition: OverlayDefinition, image: Image, hls_src: Path) -> bytes:
    """Return the compiled kernels for a level of vector instructions, cached in hls_src/build.

    An image that would not load on an old system is an OverlayError, as is a source that does not compile.
    """
    compiler = os.environ.get("CXX") or "g++"
    key = digest(f"{sources_digest(definition, hls_src)} {_run([compiler, '--version']).stdout}".encode())[:16]
    cache = hls_src / CACHE
    cache.mkdir(exist_ok=True)
    stem = f"{definition.name}-{image.name}-"
    cached = cache / f"{stem}{key}.so"
    if not cached.exists():
        draft = cache / f"{stem}{os.getpid()}.draft"
        options = (*COMPILE_FLAGS, *image.flags, *definition.emulation_flags)
        files = (f"-ffile-prefix-map={hls_src}=.", str(hls_src / definition.source), "-o", str(draft))
        result = _run([compiler, *options, *files, *LINK_FLAGS])
        sys.stderr.write(result.stderr)
        if result.returncode:
            raise OverlayError(
                f"{definition.name} does not compile for {image.name}; see the compiler's messages above"
            )
        faults = portability_faults(draft.read_bytes())
        if faults:
            raise OverlayError(f"{definition.name} for {image.name} needs {', '.join(faults)}, which old systems lack")
        for old in cache.glob(f"{stem}*.so"):
            old.unlink()
        draft.replace(cached)
    return cached.read_bytes()


def portability_faults(image: bytes) -> list[str]:
    """Return the libraries and glibc versions that an image needs but a system of 2015 may lack."""
    versions = {tuple(map(int, version)) for version in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", image)}
    libraries = set(re.findall(rb"\0(lib[\w+.-]*\.so[.\d]*)", image)) - _LIBRARIES
    newer = [f"GLIBC_{major}.{minor}" for major, minor in sorted(versions) if (major, minor) > OLDEST_GLIBC]
    return newer + sorted(library.decode() for library in libraries)


def build(definition: OverlayDefinition, hls_src: Path, overlays: Path) -> OverlayEntry:
    """Build an overlay, write it and its manifest entry; after an OverlayError nothing is written."""
    check_prototypes(definition, hls_src)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = pool.map(lambda image: compile_image(definition, image, hls_src), IMAGES)
        images = {image.name: code for image, code in zip(IMAGES, compiled, strict=True)}
    file = f"{definition.name}.xclbin"
    data = pack_xclbin(EmulationOverlay(definition.kernels, images, clock_mhz=M.CLOCK_MHZ))
    entry = OverlayEntry(
        name=definition.name,
        file=file,
        kind="emulation",
        platform=U50.platform,
        sha256=digest(data),
        sources=sources_digest(definition, hls_src),
        kernels=tuple(kernel.name for kernel in definition.kernels),
        images=tuple(images),
        machine=definition.machine(hls_src),
    )
    write_file(overlays / file, data)
    add_entry(overlays, entry)
    return entry


def install(
    definition: OverlayDefinition, xclbin: Path, hls_src: Path, overlays: Path, clock_mhz: int, sources: str = ""
) -> OverlayEntry:
    """Copy an overlay that Vitis linked for a card to overlays/hw/, list it in the manifest and return its entry.

    `sources` is the `hardware_digest` when the build began, by default the current one. A file that is not an .xclbin
    for a U50 is an OverlayError; nothing is written then.
    """
    data = read_file(xclbin)
    try:
        container = read_container(data)
    except OverlayError as error:
        raise OverlayError(f"{xclbin}: {error}") from None
    if container.mode != "hw" or not container.platform.startswith("xilinx_u50_"):
        raise OverlayError(
            f"{xclbin} is built for {container.mode} on {container.platform or 'an unknown platform'}: the manifest "
            "lists hw overlays for a U50's platform only; load other overlays by their path"
        )
    file = f"hw/{definition.name}.xclbin"
    entry = OverlayEntry(
        name=definition.name,
        file=file,
        kind="hw",
        platform=container.platform,
        sha256=digest(data),
        sources=sources or hardware_digest(definition, hls_src, clock_mhz),
        kernels=tuple(kernel.name for kernel in definition.kernels),
        machine=definition.machine(hls_src),
        clock_mhz=clock_mhz,
        interfaces=container.interfaces,
    )
    (overlays / "hw").mkdir(exist_ok=True)
    write_file(overlays / file, data)
    add_entry(overlays, entry)
    return entry


def stale(definition: OverlayDefinition, hls_src: Path, overlays: Path) -> str:
    """Return why an emulation overlay is out of date; "" if it is up to date."""
    entries = {entry.name: entry for entry in read_manifest(overlays) if entry.kind == "emulation"}
    entry = entries.get(definition.name)
    if entry is None or not (overlays / entry.file).is_file():
        return "has not been built"
    if entry.sources != sources_digest(definition, hls_src):
        return "is older than its sources"
    is_listed = digest(read_file(overlays / entry.file)) == entry.sha256
    return "" if is_listed else "is not the file that manifest.json lists"


def stale_hardware(hls_src: Path, overlays: Path) -> dict[str, str]:
    """Return why hw overlays are out of date, by name; empty if all are up to date.

    Compares the digest of their inputs with the current files, and the clock that Vitis reached with the required one.
    """
    reasons = {}
    for entry in read_manifest(overlays):
        if entry.kind != "hw" or entry.name not in DEFINITIONS:
            continue
        faults = []
        if entry.clock_mhz is None:
            faults.append("has no clock in the manifest")
        else:
            if entry.sources != hardware_digest(DEFINITIONS[entry.name], hls_src, entry.clock_mhz):
                faults.append("is older than its sources, vitis/ included")
            reached = read_container(read_file(overlays / entry.file)).clock_mhz
            if reached not in (None, entry.clock_mhz):
                faults.append(f"runs at {reached} MHz, it was built for {entry.clock_mhz}")
        if faults:
            reasons[entry.name] = " and ".join(faults)
    return reasons


def main(arguments: Sequence[str] | None = None, definitions: Mapping[str, OverlayDefinition] = DEFINITIONS) -> int:
    parser = argparse.ArgumentParser(prog="python -m bttlab.card.build", description="Build an emulation overlay.")
    first = next(iter(definitions))
    parser.add_argument("name", metavar="NAME", nargs="?", choices=definitions, default=first, help=f"default: {first}")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="only print why the overlay is out of date, if it is")
    action.add_argument("--describe", action="store_true", help="only print source file, digest for hw, and kernels")
    action.add_argument("--install", metavar="FILE", type=Path, help="only add an .xclbin that Vitis linked for a card")
    parser.add_argument("--clock", metavar="MHZ", type=int, default=M.CLOCK_MHZ, help="of an hw overlay")
    parser.add_argument(
        "--digest", metavar="SHA256", default="", help="of an hw overlay's inputs, as printed by --describe"
    )
    parser.add_argument("--hls-src", metavar="DIR", type=Path, default=HLS_SOURCE, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    definition, source, overlays = definitions[options.name], options.hls_src, overlays_folder()
    try:
        if options.describe:
            sources = hardware_digest(definition, source, options.clock)
            print(definition.source, sources, *(kernel.name for kernel in definition.kernels))
        elif options.check:
            reason = stale(definition, source, overlays)
            if reason:
                print(f"{definition.name} {reason}; rebuild it with: make overlays")
            return int(bool(reason))
        else:
            if options.install:
                entry = install(definition, options.install, source, overlays, options.clock, options.digest)
            else:
                entry = build(definition, source, overlays)
            print(f"{overlays / entry.file}  {entry.sha256}")
    except BttlabError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _run(command: Sequence[str]) -> subprocess.CompletedProcess:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise OverlayError(
            f"no C++ compiler {command[0]!r} ({error.strerror}): install g++ or set CXX; prebuilt overlays need none"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
