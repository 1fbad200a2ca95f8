"""The driver of the training kernel: what `overlay.train_transformer_1` is, on a card and on the emulated one."""

import itertools
from typing import Any

import numpy as np

from bttlab.model import ModelConfig, Optimizer
from bttlab.u50 import records
from bttlab.u50.kernel import TRAIN_KERNEL, OverlayError
from bttlab.u50.records import ParameterMemory
from bttlab.u50.training import TrainingDriver


class TransformerTrainer(TrainingDriver):
    """Trains one tensor transformer with all its parameters on chip, one sample a step.

    The methods of `bttlab.model.Trainer`, and `start` for training beside other work. The kernel tells what model it
    was built for (`config`); parameters stay on the card from call to call until others are loaded.
    """

    bindto = (TRAIN_KERNEL.vlnv,)
    _head_words = 1  # the step
    _records_argument = "sample_records"

    def __init__(self, description: dict[str, Any]):
        super().__init__(description)
        self._results = self._banks["results"].allocate((records.DESCRIPTION_LENGTH,), np.int32)
        self._records = self._banks["sample_records"].allocate((records.LANES,), np.int32)
        self._memory = self._banks["memory"].allocate((1, records.LANES), np.float32)
        self.config = self._describe()
        self._layout = ParameterMemory(self.config)
        words = int(self._results[sum(count for _, count in records.SHAPE_FIELDS)])
        if words != self._layout.words:
            raise OverlayError(
                f"the overlay holds its parameters in {words} words, this version of bttlab in {self._layout.words}: "
                "they are of different versions; rebuild the overlay with: make overlays"
            )
        self._memory = self._banks["memory"].allocate((1 + 3 * words, records.LANES), np.float32)
        self._result_record = records.result_record(self.config)

    def profile(self) -> dict[tuple[str, str], int]:
        """Return the cycles that the kernel has taken since the last call, by stage and unit, without what took none.

        Stages are FP, BP, PU and IO; units are the kinds of linear layer, "embedding", "attention" and so on
        (`records.UNITS`). The emulated card counts what the hardware would take, loop by loop (`hls_src/timing.h`): a
        model, not a measurement. A real card counts nothing, and the table is empty.
        """
        with self._exclusively():
            self._results = self._at_least("results", self._results, 4 * records.PROFILE_LENGTH)
            self._run(records.PROFILE)
            self._results.sync_from_device()
        counters = np.array(self._results[: 2 * len(records.STAGES) * len(records.UNITS)]).view(np.int64).tolist()
        table = dict(zip(itertools.product(records.STAGES, records.UNITS), counters, strict=True))
        return {key: count for key, count in table.items() if count}

    @property
    def _step(self) -> int:
        """Updates so far, which the kernel counts; in the host's parameter memory."""
        return int(self._memory[0, :1].view(np.int32)[0])

    @_step.setter
    def _step(self, step: int) -> None:
        self._memory[0, :1].view(np.int32)[:] = step

    def _rows(self, samples, rates: np.ndarray, optimizer: Optimizer, label_smoothing: float) -> np.ndarray:
        rows = np.zeros(len(samples), records.sample_record(self.config))
        rows["tokens"], rows["intent"], rows["learning_rate"] = samples.lengths, samples.intents, rates
        rows["label_smoothing"] = label_smoothing
        rows["token_ids"][:, : samples.tokens.shape[1]] = samples.tokens
        rows["slots"][:, : samples.slots.shape[1]] = samples.slots
        return rows

    def _last_arguments(self, optimizer: Optimizer) -> tuple[Any, ...]:
        return optimizer.weight_decay, self._records, self._results, self._memory

    def _describe(self) -> ModelConfig:
        self._run(records.DESCRIBE)
        self._results.sync_from_device()
        values, fields, first = self._results.tolist(), {}, 0
        for name, count in records.SHAPE_FIELDS:
            fields[name] = values[first] if count == 1 else tuple(values[first : first + count])
            first += count
        return ModelConfig(**fields)
