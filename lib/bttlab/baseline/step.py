"""Task of every mode of a baseline: the model on its device, its samples in order, and one training step."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bttlab.data import Samples
from bttlab.model import ModelConfig, ModuleConfig, loss, network_of, sample_losses

LossFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


class Task:
    """Training by SGD, a sample or a batch per step, with everything that a step needs on the device before the first.

    There are `batch` samples for each step, in order, of one length; a module has its own initial parameters, whatever
    the seed. Gradients come from `torch.autograd.grad`: at batch 1 it saves filling and adding to one array a
    parameter. A step is a row of `rows`, so that an eager step takes views, which cost the device nothing, and a
    captured step finds its samples by the `cursor`, which lies on the device and moves on by itself: a step is then one
    launch, with no copy from the host.
    """

    def __init__(
        self,
        config: ModelConfig | ModuleConfig,
        flow: str,
        samples: Samples,
        learning_rate: float,
        seed: int,
        device: str | torch.device,
        batch: int = 1,
    ):
        samples.validate(config)
        self.device = torch.device(device)
        self.learning_rate = learning_rate
        self.lengths: list[int] = samples.lengths[::batch].tolist()  # real tokens of each step's samples
        self.model = network_of(config, flow, seed).to(self.device)
        self.ignore_index = config.ignore_index
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        columns = (samples.tokens, samples.intents[:, None], samples.slots)
        rows = np.concatenate(columns, axis=1).astype(np.int64)
        steps = rows if batch == 1 else rows.reshape(-1, batch, rows.shape[1])
        self.rows = torch.from_numpy(steps).to(self.device)
        # shape (steps,); what each step has written: reading one waits for the device, so they are read in chunks
        self.losses = torch.zeros(len(self.lengths), device=self.device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._width = samples.tokens.shape[1]
        self._start = [parameter.detach().cpu().clone() for parameter in self.parameters]

    def __len__(self) -> int:
        return len(self.lengths)

    @torch.no_grad()
    def restart(self) -> None:
        """Go back to the initial parameters, in place: captured steps keep their addresses."""
        for parameter, start in zip(self.parameters, self._start, strict=True):
            parameter.copy_(start)
        self.rewind()

    def rewind(self) -> None:
        self.cursor.zero_()

    def loss(self, tokens: Tensor, intent: Tensor, slots: Tensor) -> Tensor:
        """Return the loss of a sample: tokens (T,), intent (), slots (T - 1,), all int64; of n samples their mean."""
        logits = self.model(tokens)
        if tokens.ndim == 1:
            return loss(*logits, intent, slots, ignore_index=self.ignore_index)
        return sample_losses(*logits, intent, slots, ignore_index=self.ignore_index).mean()

    def sample(self, row: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, intent and slots of a row of `rows` as views."""
        width = self._width
        return row[..., :length], row[..., width], row[..., width + 2 : width + 1 + length]

    def gradients(self, value: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(value, self.parameters)

    @torch.no_grad()
    def update(self, gradients: tuple[Tensor, ...]) -> None:
        """p -= learning rate x g, for all parameters in as few kernels as the device can."""
        torch._foreach_add_(self.parameters, gradients, alpha=-self.learning_rate)

    def step(self, index: int, function: LossFunction) -> None:
        value = function(*self.sample(self.rows[index], self.lengths[index]))
        self.update(self.gradients(value))
        self.losses[index] = value.detach()

    def step_at_cursor(self, length: int, function: LossFunction) -> None:
        """Train on the sample at the cursor, which has `length` tokens, and move on: for capture, all on the device."""
        row = self.rows.index_select(0, self.cursor)[0]
        value = function(*self.sample(row, length))
        self.update(self.gradients(value))
        self.losses.index_copy_(0, self.cursor, value.detach().reshape(1))
        self.cursor.add_(1)
