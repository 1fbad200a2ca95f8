"""Readers of files that others may have made, and the files to begin mutations with."""

import json
import os
import random
import re
import shutil
import struct
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

from bttlab.card import EmulatedU50
from bttlab.card.manifest import MANIFEST, overlays_folder, read_manifest
from bttlab.card.xclbin import FIRST_SECTION, KIND
from bttlab.data import find_corpus, read_corpus
from bttlab.data.corpus import SPLIT_NAMES
from bttlab.model import Optimizer, initial_parameters
from bttlab.runs import Checkpoint, CheckpointStore, CorpusRecord, RunSettings, read_checkpoint
from bttlab.runs import checkpoint as checkpoint_module
from reliability.mutations import INTEGERS, mutate_bytes, mutate_json
from tiny_runs import CONFIG

HUGE = 3 << 30  # bytes of a file that takes no room on disk


class Target(ABC):
    """A reader, and the files that it is given.

    Parameters
    ----------
    folder : path
        Empty; the files go there.

    Attributes
    ----------
    sound : dict of str to list of bytes
        By name, variants of each file.
    tokens : list of bytes
        That mean something in them.
    """

    sound: dict[str, list[bytes]]
    tokens: list[bytes]

    def __init__(self, folder: Path):
        self.folder, self.touched = folder, []

    @abstractmethod
    def read(self) -> None:
        """Read what `write` wrote; raises BttlabError if it is refused, AssertionError if it should have been."""

    def restore(self) -> None:
        """Write the sound files."""
        for name in self.touched or self.sound:
            remove(self.folder / name)
            (self.folder / name).write_bytes(self.sound[name][0])

    def write(self, draw: random.Random) -> None:
        """Write a hostile variant of one or two of the files."""
        self.restore()
        self.touched = draw.sample(sorted(self.sound), min(len(self.sound), draw.choice((1, 1, 1, 2))))
        for name in self.touched:
            path = self.folder / name
            remove(path)
            if not write_no_file(path, draw):
                data = draw.choice(self.sound[name])
                is_deep = draw.random() < 0.6
                path.write_bytes(self.restructure(data, draw) if is_deep else mutate_bytes(data, draw, self.tokens))

    @abstractmethod
    def restructure(self, data: bytes, draw: random.Random) -> bytes:
        """Return a variant whose outer structure holds, so that what lies deeper is read."""


class Overlay(Target):
    """The overlay reader, as the emulated card uses it, PYNQ's parser behind it included."""

    name = "hostile.xclbin"

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.sound = {self.name: [path.read_bytes() for path in sorted(overlays_folder().glob("*.xclbin"))]}
        self.tokens = [b"xclbin2\0", b"PK\1\2", b"PK\3\4", b"PK\5\6", b"<kernel>", b"<!ENTITY a 'b'>", b"\0" * 64]
        self.card = EmulatedU50()

    def read(self) -> None:
        """Describe the overlay; it is not loaded, as it is not trusted."""
        overlay = self.card.get_bitfile_metadata(str(self.folder / self.name)).overlay
        assert overlay.kernels and all(isinstance(image, bytes) for image in overlay.images.values())

    def restructure(self, data: bytes, draw: random.Random) -> bytes:
        """Exchange a section for a hostile one, or put odd numbers into the table of sections."""
        row = struct.Struct("<I16s4xQQ")
        count = int.from_bytes(data[FIRST_SECTION - 8 : FIRST_SECTION - 4], "little")
        index = draw.randrange(count)
        at = FIRST_SECTION + index * row.size
        kind, name, offset, size = row.unpack_from(data, at)
        copy = bytearray(data)
        if draw.random() < 0.2:
            kind, offset, size = (
                draw.choice((value, draw.choice(INTEGERS), value + draw.choice((-1, 1))))
                for value in (kind, offset, size)
            )
            row.pack_into(copy, at, kind % 2**32, name, offset % 2**64, size % 2**64)
            return bytes(copy)
        section = data[offset : offset + size]
        section = (
            _mutate_xml(section, draw) if kind == KIND.EMBEDDED_METADATA else mutate_bytes(section, draw, self.tokens)
        )
        row.pack_into(copy, at, kind, name, len(copy), len(section))
        copy += section
        copy[304:312] = len(copy).to_bytes(8, "little")  # the header's m_length
        return bytes(copy)


def _mutate_xml(data: bytes, draw: random.Random) -> bytes:
    """Exchange attribute values, or drop, double, nest or move elements."""
    lines = data.split(b"\n")
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(lines))
        match draw.randrange(5):
            case 0:
                del lines[at : at + draw.choice((1, 2, 10))]
                lines = lines or [b""]
            case 1:
                lines[at:at] = [lines[at]] * draw.choice((1, 20, 2000))
            case 2:
                lines[at] = b"<a>" * 50_000
            case _:
                odd = (
                    b"",
                    b"0",
                    b"-1",
                    b"0x",
                    b"9" * 5000,
                    b"a b",
                    b"class",
                    b"&#0;",
                    b"&lt;",
                    b"int*",
                    b"x" * 70,
                    b"1e9",
                )
                values = re.findall(rb'"[^"]*"', lines[at]) or [b"\0"]
                lines[at] = lines[at].replace(draw.choice(values), b'"' + draw.choice(odd) + b'"')
    return b"\n".join(lines)


class Manifest(Target):
    """The reader of the manifest, and what is done with its entries: the file is looked for, the model built."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.sound = {MANIFEST: [(overlays_folder() / MANIFEST).read_bytes()]}
        self.tokens = [b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"1e999", b"\\u0000", b"\\ud800", b"\xff"]

    def read(self) -> None:
        for entry in read_manifest(self.folder):
            assert (self.folder / entry.file).resolve().is_relative_to(self.folder.resolve())
            " ".join((entry.name, entry.file, entry.platform, *entry.kernels, *entry.images)).encode()  # can be shown

    def restructure(self, data: bytes, draw: random.Random) -> bytes:
        return mutate_json(json.loads(data), draw).encode()


class CheckpointFile(Target):
    """The reader of checkpoints."""

    name = "hostile.safetensors"

    def __init__(self, folder: Path):
        super().__init__(folder)
        store = CheckpointStore(folder)
        store.save(_checkpoint())
        self.sound = {self.name: [store.latest.read_bytes()]}
        self.tokens = [b"{", b'"', b"F32", b"BOOL", b"[0,0]", b"__metadata__", b"\0" * 8, b"\xff" * 8]

    def read(self) -> None:
        """Read the checkpoint; what has the digest of its content is taken, so a forged one only has to make sense."""
        read = read_checkpoint(self.folder / self.name)
        shapes = read.settings.config.parameter_shapes()
        assert {name: array.shape for name, array in read.parameters.items()} == shapes
        assert read.epochs_done >= 0 and read.losses.ndim == 1

    def restructure(self, data: bytes, draw: random.Random) -> bytes:
        """Exchange values in the header, or in the metadata and forge its digest."""
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        if draw.random() < 0.5:
            text = mutate_json(header, draw).encode()
            return len(text).to_bytes(8, "little") + text + data[8 + length :]
        tensors = load(data)
        if draw.random() < 0.2:
            name = draw.choice(sorted(tensors))
            odd = (
                np.zeros((0,), np.float32),
                np.zeros((3, 0), np.int8),
                tensors[name].astype(np.float64),
                np.float32(3),
            )
            tensors[name] = np.asarray(draw.choice(odd))
        text = mutate_json(json.loads(header["__metadata__"]["bttlab"]), draw)
        digest = checkpoint_module._digest(text, tensors)
        return save(tensors, {"bttlab": text, "sha256": digest})


def _checkpoint() -> Checkpoint:
    parameters = initial_parameters(CONFIG, 0)
    optimizer = Optimizer("momentum")
    settings = RunSettings(CONFIG, "airline", "reference", optimizer, 1e-3)
    corpus = CorpusRecord("tiny", "0" * 64, ["UNK", "a", "b"], ["PAD", "UNK", "O", "B-c", "I-c"], ["[PAD]", "[UNK]"])
    state = {f"{name}.first_moment": array for name, array in parameters.items()}
    return Checkpoint(settings, corpus, "reference", 1, np.ones(3, np.float32), 0.5, parameters, state)


class CorpusFolder(Target):
    """The reader of corpora: the built-in one, a few utterances of each split."""

    UTTERANCES = 12

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.sound = {}
        built_in = find_corpus("airline")
        for path in sorted(filter(Path.is_file, built_in.rglob("*"))):
            name, data = str(path.relative_to(built_in)), path.read_bytes()
            lines = data.split(b"\n")
            self.sound[name] = [data if name.endswith("_label.txt") else b"\n".join(lines[: self.UTTERANCES]) + b"\n"]
        for name in self.sound:
            (folder / name).parent.mkdir(exist_ok=True)
        self.tokens = [
            b"\r\n",
            b"\n",
            b"\r",
            b" ",
            b"\t",
            b"\0",
            b"\xff",
            b"\xef\xbb\xbf",
            "\u2028".encode(),
            b"\xed\xa0\x80",
        ]
        self.tokens += [b"O ", b"B- ", b"I-x ", b"PAD", b"UNK", b"\x1b[31m", b"a " * 20, "\U0001f600".encode()]

    def restructure(self, data: bytes, draw: random.Random) -> bytes:
        """Now and then take another file of the corpus."""
        if draw.random() < 0.15:
            (data,) = self.sound[draw.choice(sorted(self.sound))]
        return mutate_bytes(data, draw, self.tokens)

    def read(self) -> None:
        corpus = read_corpus(self.folder, "unk")
        for name in SPLIT_NAMES:
            split = corpus.split(name)
            assert len(split.words) == len(split.slots) == len(split.intents) > 0
            assert all(len(words) == len(tags) > 0 for words, tags in zip(split.words, split.slots, strict=True))


def write_no_file(path: Path, draw: random.Random) -> bool:
    """Now and then, make something else than a file of reasonable size; returns whether it did."""
    match draw.randrange(2000):
        case 0:
            path.mkdir()
        case 1:
            os.mkfifo(path)
        case 2:
            path.symlink_to(path.name)
        case 3:
            path.touch()
            os.truncate(path, HUGE)
        case 4:
            pass  # nothing
        case _:
            return False
    return True


def remove(path: Path) -> None:
    """Remove whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


TARGETS: dict[str, type[Target]] = {
    "overlay": Overlay,
    "manifest": Manifest,
    "checkpoint": CheckpointFile,
    "corpus": CorpusFolder,
}
