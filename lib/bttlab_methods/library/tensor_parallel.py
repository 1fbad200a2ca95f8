"""Tensor parallelism: each weight matrix split over processes."""

from dataclasses import dataclass

from bttlab_methods.parallel import WHOLE_MATRICES, Parallel, is_split
from bttlab_methods.setting import MethodError, Setting
from bttlab_methods.training import Training

COLUMNS, ROWS = ("query", "key", "value", "first"), ("output", "second")


@dataclass(frozen=True)
class TensorParallel(Parallel):
    """Split the encoders' weight matrices over processes: each has some heads and some hidden features.

    Parameters
    ----------
    processes : int
        Divides the number of heads.
    """

    name = "tensor-parallel"
    source = "Shoeybi et al. (Megatron-LM), arXiv 1909.08053, section 3; torch.distributed.tensor.parallel"
    excludes = Parallel.excludes | WHOLE_MATRICES | {"linear layers"}

    def change_setting(self, setting: Setting) -> Setting:
        """Check that the heads can be split."""
        if setting.config.heads % self.processes:
            raise MethodError(
                f"method {self.name}: processes is {self.processes}: it must divide the {setting.config.heads} heads"
            )
        return setting

    def place(self, training: Training) -> None:
        """Split the layers that open a block by columns, and those that close it by rows."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (self.processes,))
        plan = {name: ColwiseParallel() for name in COLUMNS} | {name: RowwiseParallel() for name in ROWS}
        for encoder in training.model.encoders:
            parallelize_module(encoder, mesh, plan)
            encoder.heads //= self.processes

    def prepare_optimizer(self, training: Training) -> None:
        """Put the split parameters into groups of their own: an update takes one kind at a time."""
        for group in list(training.optimizer.param_groups):
            split = [parameter for parameter in group["params"] if is_split(parameter)]
            group["params"] = [parameter for parameter in group["params"] if not is_split(parameter)]
            training.optimizer.add_param_group(group | {"params": split})
