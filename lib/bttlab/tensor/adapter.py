"""Adapters in tensor-train format: a frozen linear layer with a small update that is trained beside it."""

import copy
import re
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bttlab.tensor.compression import replace_layers
from bttlab.tensor.layers import ENDS, TTLinear
from bttlab.tensor.read_only import read_only
from bttlab.tensor.shapes import ShapeError, choose_modes
from bttlab.util.files import write_folder


class TTAdapter(nn.Module):
    """y = layer(x) + update(x): a frozen linear layer and a `TTLinear` without bias, which is trained.

    After Yang et al. (LoRETTA), arXiv 2402.11417: LoRETTA_rep writes each of LoRA's two matrices as a tensor train.
    Here both are one train, whose middle bond is LoRA's rank. The first core is initially zero: at first nothing
    changes.

    Parameters
    ----------
    layer : nn.Linear
        Frozen in place. The update has its device and type.
    rank : int or sequence of int
        Every internal rank, or all of them in order, output modes first, as for `TTLinear`.

    Raises
    ------
    ShapeError
        If the rank is not allowed.
    """

    def __init__(self, layer: nn.Linear, rank: int | Sequence[int]):
        super().__init__()
        outputs, inputs = layer.out_features, layer.in_features
        modes = choose_modes(outputs, ENDS), choose_modes(inputs, ENDS)
        options: Any = {"bias": False, "device": layer.weight.device, "dtype": layer.weight.dtype}
        self.layer = layer.requires_grad_(False)
        self.update = TTLinear(inputs, outputs, modes[0], modes[1], rank, **options)
        nn.init.zeros_(self.update.cores[0])

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return self.layer(x) + self.update(x)

    @property
    def weight(self) -> Tensor:
        """The matrix with the update in it, to be read only, as that of `TTLinear`."""
        return read_only(self.layer.weight + self.update.to_dense(), "TTAdapter")

    @property
    def bias(self) -> Tensor | None:
        """The bias of the frozen layer."""
        return self.layer.bias

    @torch.no_grad()
    def lora(self) -> tuple[Tensor, Tensor]:
        """Return LoRA's A, shape (r, in), and B, shape (out, r): the update's matrix is B A."""
        cores, count = self.update.used_cores(), len(self.update.out_modes)
        b, a = _contracted(cores[:count])[0], _contracted(cores[count:])[..., 0]
        return a.flatten(1), b.flatten(0, -2)

    @torch.no_grad()
    def to_linear(self) -> nn.Linear:
        """Return a dense layer that has the update in its weight."""
        merged = copy.deepcopy(self.layer)
        merged.weight += self.update.to_dense()
        return merged


def _contracted(cores: Sequence[Tensor]) -> Tensor:
    """Return the part of a train that cores make up, of shape (first bond, modes, last bond)."""
    whole = cores[0]
    for core in cores[1:]:
        whole = torch.tensordot(whole, core, 1)
    return whole


def adapt(
    model: nn.Module,
    rank: int | Sequence[int],
    layers: Collection[str] | None = None,
    trained: Collection[str] = (),
) -> list[str]:
    """Freeze a model, and put a `TTAdapter` at its linear layers in place; return their names.

    Parameters
    ----------
    model : nn.Module
        Changed in place.
    rank : int or sequence of int
        Every internal rank of an update, or all of them in order.
    layers : collection of str, optional
        Names of linear layers or their last parts, such as "query"; by default all but those in `trained`.
    trained : collection of str
        Names of modules that are trained whole, such as "classifier".

    Returns
    -------
    list of str
        Names of the layers that have an adapter, in alphabetical order.

    Raises
    ------
    ShapeError
        If a name fits no layer, no layer is left, the model has adapters, or the rank is not allowed.
    """
    for argument, given in (("layers", layers), ("trained", trained)):
        if isinstance(given, str):
            raise ShapeError(f"{argument} is {given!r}: give a list of names")
    if found := _adapters(model):
        raise ShapeError(f"the model has a TTAdapter at {next(iter(found))!r}: call merge(model) before adapt")
    names = dict(model.named_modules())
    linear = {name for name, module in names.items() if type(module) is nn.Linear and name}
    wanted = linear if layers is None else {name for name in linear if _fits(name, layers)}
    for given, there in ((layers or (), linear), (trained, names)):
        if unknown := [name for name in given if not any(_fits(one, [name]) for one in there)]:
            raise ShapeError(f"no layer of the model fits {unknown[0]!r}: its linear layers are {', '.join(linear)}")
    whole = [name for name in names if _fits(name, trained)]
    chosen = sorted(name for name in wanted if not any(f"{name}.".startswith(f"{one}.") for one in whole))
    if not chosen:
        raise ShapeError("no layer gets an adapter: the model has no nn.Linear inside that is not in trained")
    made = {name: TTAdapter(names[name], rank) for name in chosen}  # pyright: ignore[reportArgumentType]
    model.requires_grad_(False)
    replace_layers(model, {names[name]: adapter.train(names[name].training) for name, adapter in made.items()})
    for name in whole:
        names[name].requires_grad_(True)
    return chosen


def _fits(name: str, given: Collection[str]) -> bool:
    return any(name == one or name.endswith(f".{one}") for one in given)


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, layer)


def merge(model: nn.Module) -> nn.Module:
    """Replace each `TTAdapter` in place by a dense layer that has its update; return the model.

    Parameters
    ----------
    model : nn.Module
        Changed in place.

    Returns
    -------
    nn.Module
        The same model.
    """
    replace_layers(model, {adapter: adapter.to_linear() for adapter in _adapters(model).values()})
    return model


def _adapters(model: nn.Module) -> dict[str, TTAdapter]:
    return {name: module for name, module in model.named_modules() if isinstance(module, TTAdapter)}


def write_lora(model: nn.Module, folder: Path | str) -> None:
    """Write the adapters of a model as a new folder that `peft.PeftModel.from_pretrained(base, folder)` reads.

    peft has no tensor trains: it stores each update as LoRA's two matrices, exactly, with more numbers than the cores.
    Modules that are trained whole are in the folder, too; single parameters that are trained beside them are refused.

    Parameters
    ----------
    model : nn.Module
        With adapters, as `adapt` makes them. It does not change.
    folder : path
        Must not exist.

    Raises
    ------
    ShapeError
        If the model has no adapter, or peft cannot store what it trains.
    OSError
        If the folder cannot be written, or exists.
    ImportError
        Without peft.
    """
    from peft import LoraConfig, get_peft_model

    found, base = _adapters(model), copy.deepcopy(model)
    if not found:
        raise ShapeError("the model has no TTAdapter: call adapt(model, rank) first")
    everywhere = [name for name, one in model.named_modules(remove_duplicate=False) if isinstance(one, TTAdapter)]
    if second := sorted({*everywhere} - {*found}):
        raise ShapeError(f"peft cannot hold {second[0]}, which is the same layer as another: copy it before adapt")
    matrices = {name: adapter.lora() for name, adapter in found.items()}
    for name, adapter in found.items():
        _put(base, name, copy.deepcopy(adapter.layer))
    parameters = {name for name, one in base.named_parameters() if one.requires_grad}
    leaves = {name.rpartition(".")[0] for name in parameters}
    whole = sorted(
        name for name in leaves if name and all(p.requires_grad for p in base.get_submodule(name).parameters())
    )
    if other := sorted(name for name in parameters if name.rpartition(".")[0] not in whole):
        raise ShapeError(f"peft cannot hold {other[0]}, which is trained beside the adapters: freeze it")
    patterns = {f"^{re.escape(name)}": len(a) for name, (a, _) in matrices.items()}  # of names from their start
    config = LoraConfig(
        r=max(patterns.values()),
        lora_alpha=max(patterns.values()),  # a factor of 1
        rank_pattern=patterns,
        alpha_pattern=patterns,
        target_modules="|".join(map(re.escape, matrices)),
        modules_to_save=whole or None,
    )
    wrapped = get_peft_model(base, config)  # pyright: ignore[reportArgumentType]  # peft takes any module
    with torch.no_grad():
        for name, (a, b) in matrices.items():
            layer: Any = base.get_submodule(name)
            layer.lora_A["default"].weight.copy_(a)
            layer.lora_B["default"].weight.copy_(b)
    with tempfile.TemporaryDirectory() as draft:
        wrapped.save_pretrained(draft, save_embedding_layers=False)
        names = ("adapter_config.json", "adapter_model.safetensors")
        write_folder(Path(folder), {name: (Path(draft) / name).read_bytes() for name in names})
