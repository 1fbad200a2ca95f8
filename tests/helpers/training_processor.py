"""The training processor compiled for this host, and what its tests compare it with."""

import contextlib
import copy
from _ctypes import dlclose
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bttlab.card.build import DEFINITIONS, sources_digest
from bttlab.card.image import IMAGES
from bttlab.card.manifest import read_manifest
from bttlab.card.processor import sample_records
from bttlab.card.xclbin import read_xclbin
from bttlab.compiler.module import ModuleModel
from bttlab.compiler.program import Options, Program, compile
from bttlab.data import Samples
from bttlab.model import ModelConfig, ModuleConfig, Optimizer, Trainer, Transformer, initial_parameters
from bttlab.runs import tensors_digest

from build_library import SOURCES, library
from conftest import ROOT
from processor_native import NativeProcessor

COMMON = ("-std=c++17", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden", "-Wno-psabi")
FLAGS = {  # fast: the emulation; loop: the machine's loop as it stands, which -O2 takes five times as long over
    "fast": ("-O3", "-DBTTLAB_FAST"),
    "loop": ("-O1",),
}
# Two encoders of four vectors: short enough that hundreds of programs can be run in the machine's loop.
SMALL = ModelConfig(
    encoders=2,
    sequence_length=18,
    hidden_size=64,
    heads=2,
    vocabulary_size=60,
    intents=5,
    slots=19,
    linear_out_modes=(4, 4, 4),
    linear_in_modes=(4, 4, 4),
    linear_rank=4,
    embedding_row_modes=(3, 4, 5),
    embedding_column_modes=(4, 4, 4),
    embedding_rank=6,
)


def build_libraries(folder: Path) -> dict[str, Path]:
    """Compile the kernel both ways; "fast" is the committed overlay's if that is of these sources."""
    source, trainer, least = SOURCES / "processor" / "trainer.cpp", DEFINITIONS["trainer"], IMAGES[-1]
    wanted, made = dict(FLAGS), {}
    (entry,) = (e for e in read_manifest(ROOT / "overlays") if e.name == trainer.name and e.kind == "emulation")
    if entry.sources == sources_digest(trainer, SOURCES):
        del wanted["fast"]
        made["fast"] = folder / "fast.so"
        made["fast"].write_bytes(read_xclbin((ROOT / "overlays" / entry.file).read_bytes()).images[least.name])
    return made | {name: library(source, *COMMON, *flags, *least.flags) for name, flags in wanted.items()}


@contextlib.contextmanager
def fresh_processor(library: Path, folder: Path) -> Iterator[NativeProcessor]:
    """A machine whose memories are all zeros: a copy of the library, which is given back at the end."""
    copy = folder / f"fresh-{library.name}"
    copy.write_bytes(library.read_bytes())
    processor = NativeProcessor(copy)
    copy.unlink()
    try:
        yield processor
    finally:
        dlclose(processor._library._handle)


def some_samples(config: ModelConfig | ModuleConfig, lengths: Sequence[int], seed: int = 0) -> Samples:
    """Samples of these lengths, their tokens and labels at random; the last token comes twice."""
    random = np.random.default_rng(seed)
    tokens = np.zeros((len(lengths), config.sequence_length), np.int32)
    slots = np.zeros_like(tokens)
    for row, labels, length in zip(tokens, slots, lengths, strict=True):
        row[:length] = random.integers(1, config.vocabulary_size, length)
        if (padding := getattr(config, "padding_token", None)) is not None:  # which no sample has
            row[:length][row[:length] == padding] = padding - 1 or padding + 1
        if (types := getattr(config, "token_types", 1)) > 1:
            row[:length] += config.vocabulary_size * random.integers(0, types, length).astype(np.int32)
        row[length - 1] = row[length // 2]
        labels[1:length] = random.integers(0, config.slots, length - 1)
    intents = random.integers(0, config.intents, len(lengths)).astype(np.int32)
    return Samples(tokens, np.asarray(lengths, np.int32), intents, slots)


def some_parameters(config: ModelConfig, seed: int = 0):
    """Ordinary initial parameters, with biases that are not all 0."""
    random = np.random.default_rng(seed)
    parameters = initial_parameters(config, seed)
    for name, value in parameters.items():
        if name.endswith(".bias"):
            parameters[name] = (0.02 * random.standard_normal(value.shape)).astype(np.float32)
    return parameters


def autograd(
    model: ModelConfig | ModuleModel, parameters, sample: Samples, precision: torch.dtype = torch.float64
) -> tuple[float, dict[str, np.ndarray]]:
    """Return the loss of a sample and the gradient of every parameter, by PyTorch; only a model's network is copied."""
    if isinstance(model, ModelConfig):
        network = Transformer(model).double()
        network.load({name: value.astype(np.float64) for name, value in parameters.items()})
    else:
        network = copy.deepcopy(model.network) if isinstance(model, ModuleModel) else model.network
        network = network.to(precision)
    length = int(sample.lengths[0])
    outputs = network(torch.from_numpy(sample.tokens[:, :length].astype(np.int64)))
    outputs = tuple(outputs.values()) if isinstance(outputs, dict) else outputs  # of transformers
    intent, slots = torch.tensor(sample.intents).long(), torch.from_numpy(sample.slots[0, 1:length]).long()
    value = torch.zeros((), dtype=precision)
    for logits in outputs if isinstance(outputs, tuple) else (outputs,):
        if logits.ndim == 2:
            value = value + F.cross_entropy(logits, intent)
        elif logits.shape[1] == length:  # of words and [CLS]: each word's tag, or the next word
            value = value + F.cross_entropy(logits[0, 1:] if "tagging" in model.task else logits[0, :-1], slots)
        else:
            value = value + F.cross_entropy(logits[0], slots)
    value.backward()
    return value.item(), {
        name: np.zeros(p.shape) if p.grad is None else p.grad.numpy() for name, p in network.named_parameters()
    }


def first_moments(processor: NativeProcessor, program: Program, parameters, sample: Samples) -> tuple[float, dict]:
    """Return the loss of a sample and the gradients of the machine: the moments that momentum leaves of one step.

    A program without moments takes a step of SGD, so large that parameters are lost in it.
    """
    optimizer, rate = (Optimizer("momentum"), 0.0) if program.layout.has_moments else (Optimizer("sgd"), 2.0**24)
    processor.load_program(program)
    processor.load(parameters)
    table = parameters.get(program.layout.in_records)
    result = processor.train(sample_records(program, sample, [rate], optimizer, table=table), optimizer)[0]
    assert result["status"] == 1
    changed, moments, _ = processor.store()
    if program.layout.has_moments:
        return float(result["loss"]), moments
    return float(result["loss"]), {name: (np.asarray(parameters[name]) - p) / rate for name, p in changed.items()}


def check_gradients(fast, model, lengths, tolerance, flow="bidirectional", least=0.0) -> Program:
    """Compare the losses and gradients of samples of these lengths with autograd's; returns the program.

    `tolerance` is relative to the largest gradient of a tensor, or to the part `least` of the largest of all. The
    gradient of a key's bias is 0, as a softmax does not see what is added to all scores of a row: the query's counts.
    """
    program = compile(model, Options(flow))
    parameters = some_parameters(model) if isinstance(model, ModelConfig) else model.parameters()
    for length in lengths:
        sample = some_samples(model, [length], seed=length)
        loss, found = first_moments(fast, program, parameters, sample)
        wanted_loss, wanted = autograd(model, parameters, sample)
        assert loss == pytest.approx(wanted_loss, abs=1e-5)
        assert found.keys() == wanted.keys()
        sizes = {name: np.abs(gradient).max() for name, gradient in wanted.items()}
        for name, gradient in wanted.items():
            size = max(sizes[name.replace("key.bias", "query.bias")], least * max(sizes.values()), 1e-12)
            error = np.abs(found[name] - gradient).max() / size
            assert error < tolerance, f"{length} tokens: {name} differs by {error:.1e} of its largest"
    return program


def state_digest(trainer: Trainer) -> str:
    """Return the digest of a trainer's parameters and optimizer state."""
    return tensors_digest(trainer.store_parameters() | trainer.store_optimizer_state())


def equal_bits(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Return True if two states are equal to the bit."""
    return all(one[name].tobytes() == other[name].tobytes() for name in one)
