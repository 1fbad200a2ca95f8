"""Export a trained model: for the accelerator's driver, and as a run that `bttlab train` continues."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bttlab.model import ModelConfig
from bttlab.tensor import TTLinear, TTMEmbedding, padded, tt_shapes, ttm_shapes
from bttlab_methods.setting import MethodError
from bttlab_methods.training import Training


def export(training: Training) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """Return a finished training's model as `bttlab.model` and the accelerator's driver take it.

    The parameters have the names, shapes and order of `config.parameter_shapes()`. A configuration has one rank for all
    TT layers and one for the embedding: trains with other ranks are padded with zeros, which changes no output. Raises
    MethodError if the model has other parts than its configuration, such as adapters.
    """
    model, config = training.model, training.setting.config
    every = model.named_modules(remove_duplicate=False)  # encoders may share what they are made of
    layers = {name: layer for name, layer in every if isinstance(layer, TTLinear | TTMEmbedding)}
    for field, kind in (("linear_rank", TTLinear), ("embedding_rank", TTMEmbedding)):
        ranks = [core.shape[-1] for layer in layers.values() if isinstance(layer, kind) for core in layer.cores]
        config = replace(config, **{field: max(ranks, default=getattr(config, field))})
    tensors = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, layer in layers.items():
            for part in [part for part in tensors if part.startswith(f"{name}.core")]:
                del tensors[part]
            if isinstance(layer, TTLinear):
                shapes = tt_shapes(layer.out_modes, layer.in_modes, config.linear_rank)
            else:
                shapes = ttm_shapes(layer.row_modes, layer.column_modes, config.embedding_rank)
            tensors |= {f"{name}.cores.{k}": core for k, core in enumerate(padded(layer.used_cores(), shapes))}
    parameters = {name: tensor.detach().cpu().float().numpy() for name, tensor in tensors.items()}
    wanted, found = config.parameter_shapes(), {name: array.shape for name, array in parameters.items()}
    other = sorted(name for name, _ in wanted.items() ^ found.items())
    if other:
        raise MethodError(
            f"the trained model has {other[0]} otherwise than a model of its configuration: it cannot be exported; "
            "leave out the method that changes it, or the checkpoint"
        )
    return config, {name: parameters[name] for name in wanted}


def write_checkpoint(training: Training, folder: Path) -> ModelConfig:
    """Write a finished training's model as a run without epochs: `bttlab eval` scores it, `bttlab train` continues it.

    Raises MethodError as `export` does; RunError, CheckpointError or OSError if the folder is in use or not writable.
    """
    from bttlab.model import LEARNING_RATES, Optimizer, ReferenceTrainer
    from bttlab.runs import Checkpoint, CheckpointStore, RunSettings
    from bttlab.runs.folder import check_free
    from bttlab.runs.settings import CorpusRecord

    config, parameters = export(training)
    corpus, seed, rule = training.setting.corpus, training.setting.seed, "adamw"
    how = {"device": "auto", "optimizer": Optimizer(rule), "learning_rate": LEARNING_RATES[rule]}
    settings = RunSettings(config=config, data=str(corpus.folder), seed=seed, **how)
    trainer = ReferenceTrainer(config)
    trainer.load_parameters(parameters)
    check_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    made_by = CorpusRecord.of(corpus, config), "PyTorch, by a method of the methods lab"
    before = {"epochs_done": 0, "losses": np.zeros(0, np.float32), "seconds": 0.0}
    state = {"parameters": parameters, "optimizer_state": trainer.store_optimizer_state()}
    CheckpointStore(folder).save(Checkpoint(settings, *made_by, **before, **state))
    return config
