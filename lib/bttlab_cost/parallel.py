"""Several GPUs: what each holds, what it sends, and what a step then takes; all modelled.

Ring collectives: a GPU sends (n - 1) / n of what a reduce-scatter or an all-gather moves, and twice that for an
all-reduce. ZeRO is Rajbhandari et al., arXiv 1910.02054; tensor parallelism is Shoeybi et al., arXiv 1909.08053.
"""

import json
from dataclasses import dataclass, replace
from functools import cache

from bttlab.baseline.gpus import Gpu, overlapped
from bttlab.util.places import ROOT
from bttlab_cost.configuration import CostError, FineTuning
from bttlab_cost.gpu_step import Coefficients, Parts, parts_of
from bttlab_cost.operators import Operator, operators
from bttlab_cost.step_memory import Footprint, MemoryCoefficients, activation_bytes, gradient_bytes, own_bytes

STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp", "tensor")
LINKS = ROOT / "data" / "links.json"
# Share of a link's speed that collectives reach, low, middle and high: an assumption. NCCL's own tests print about 230
# of 300 GB/s in a server of eight A100, and less for small messages.
REACHED = (0.5, 0.75, 0.9)
GATHERED_BLOCKS = 2  # of ZeRO-3, FSDP and weights in the host's memory: the one that is computed, and the next
HOST_LINK = "PCIe-4"  # between a GPU and its host
# Of an update by the host, which reads gradient, weight and moments and writes all but the gradient in FP32: bytes of
# an element, and 10^9 bytes a second that its memory reaches. The latter is an assumption: half of eight channels.
HOST_ACCESS_BYTES, HOST_GB_S = 28, 100.0


@dataclass(frozen=True)
class Link:
    """A link between GPUs: 10^9 bytes a second that a GPU sends, and the GPUs that usually have it."""

    link: str
    gb_s: float
    gpus: list[str]
    source: str


@cache
def read_links() -> dict[str, Link]:
    return {row["link"]: Link(**row) for row in json.loads(LINKS.read_text(encoding="utf-8"))["links"]}


@dataclass(frozen=True)
class Parallel:
    """GPUs, one of `STRATEGIES` in which they share the work, and their link."""

    gpus: int
    strategy: str
    link: Link

    @classmethod
    def of(cls, gpus: int, strategy: str, gpu: Gpu, link: str | None = None) -> "Parallel":
        """Return several GPUs with the link of that name, by default the usual one of the GPU, else PCIe 4.0."""
        if type(gpus) is not int or not 2 <= gpus <= 65_536:
            raise CostError(f"--gpus is {gpus}: several GPUs are 2 to 65,536")
        if strategy not in STRATEGIES:
            raise CostError(f"--parallel {strategy!r}: choose {', '.join(STRATEGIES)}")
        links = read_links()
        if link is not None and link not in links:
            raise CostError(f"--link {link!r} is none of {', '.join(links)}")
        usual = next((name for name, one in links.items() if gpu.gpu in one.gpus), "PCIe-4")
        return cls(gpus, strategy, links[link or usual])

    @property
    def sequences(self) -> int:
        """Batches that are trained at once: one for each GPU, or one for all with tensor parallelism."""
        return 1 if self.strategy == "tensor" else self.gpus

    def check(self, config: FineTuning) -> None:
        if self.strategy == "tensor" and config.heads % self.gpus:
            raise CostError(f"--gpus is {self.gpus}: with tensor parallelism it must divide the {config.heads} heads")
        if self.strategy == "tensor" and config.packed:
            raise CostError("--parallel tensor: packed weights are not split; take fsdp, lora or full")

    def footprint(self, config: FineTuning, fitted: MemoryCoefficients) -> Footprint:
        """Return the memory of each GPU."""
        optimizer, gradients, update = config.optimizer_bytes, gradient_bytes(config), config.update_bytes
        weights = config.state_bytes - optimizer
        n, gathered = self.gpus, 0.0
        sharded = self.strategy in ("zero3", "fsdp")
        if sharded or config.offload == "weights":
            gathered = GATHERED_BLOCKS * weights / config.layers
        if self.strategy == "ddp":
            gradients *= 2  # PyTorch keeps a copy in the buckets that it sends
        elif self.strategy == "tensor":
            weights, gradients, optimizer, update = weights / n, gradients / n, optimizer / n, update / n
        else:
            optimizer, update = optimizer / n, update / n
            gradients /= 1 if self.strategy == "zero1" else n
            weights /= n if sharded else 1
        if config.offload != "none":
            optimizer = update = 0.0
        if config.offload == "weights":
            weights = 0.0
        more = fitted.sharded if sharded else 1.0
        start, end = (more * one for one in activation_bytes(config, fitted, n if self.strategy == "tensor" else 1))
        before = gradients if config.accumulation > 1 else 0.0  # those of the micro-batches before
        phases = (before + gathered, start), (gradients + gathered, end), (gradients + update, 0.0)
        return Footprint(own_bytes(config) + weights + optimizer, phases)

    def compute_parts(self, config: FineTuning, gpu: Gpu, tokens: float, fitted: Coefficients) -> Parts:
        """Return the seconds of a GPU's step without what GPUs send, by stage, kind of work and layer."""
        parts = parts_of(map(self._share, operators(config, tokens)), gpu, config.precision, fitted)
        if config.offload != "none":
            link = 1e9 * read_links()[HOST_LINK].gb_s * REACHED[1]
            copies = self.gpus if self.strategy == "ddp" else 1  # else each process updates its part
            moved = (gradient_bytes(config) + config.value_bytes * config.trainable) * copies / self.gpus
            host = HOST_ACCESS_BYTES * config.trainable * copies / (1e9 * HOST_GB_S)
            parts["optimizer", "offloading", "optimizer"] = (moved / link + host) / config.accumulation
        if config.offload == "weights":
            parts_of_weights = self.gpus if self.strategy in ("zero3", "fsdp", "tensor") else 1
            for stage in ("forward", "backward"):
                parts[stage, "offloading", "block"] = config.weight_bytes / parts_of_weights / link
        return parts

    def _share(self, operator: Operator) -> Operator:
        shared = operator.layer != "block" if self.strategy == "tensor" else operator.stage == "optimizer"
        if self.strategy == "ddp" or not shared:
            return operator
        counts = ("flops", "traffic", "elementwise")
        return replace(operator, **{name: getattr(operator, name) / self.gpus for name in counts})

    def sent_bytes(self, config: FineTuning, tokens: float) -> float:
        ring = (self.gpus - 1) / self.gpus
        gradients, updates = gradient_bytes(config), 1 / config.accumulation
        if self.strategy == "tensor":  # after the mixer and the feed-forward layer, forward and backward
            passes = 6 if config.checkpointing else 4
            return 2 * ring * passes * config.layers * config.value_bytes * config.hidden * tokens
        if self.strategy == "ddp":
            return 2 * ring * gradients * updates
        if self.strategy in ("zero1", "zero2"):  # gradients scattered, updated weights gathered
            return ring * updates * (gradients + config.value_bytes * config.trainable)
        weights = config.weight_bytes + 4 * config.adapters  # gathered forward and backward
        return ring * (2 * weights + gradients)

    def step_seconds(
        self, config: FineTuning, gpu: Gpu, tokens: float, fitted: Coefficients
    ) -> tuple[float, float, float]:
        """Return low, middle and high of a step's seconds.

        Low: the fastest link, hidden behind the computation; high: the slowest link, after it. The middle is a
        4-norm, as for the parts of an operator; with tensor parallelism nothing hides what is sent.
        """
        compute = sum(self.compute_parts(config, gpu, tokens, fitted).values())
        sent = self.sent_bytes(config, tokens) / (1e9 * self.link.gb_s)
        slow, middle, fast = (sent / reached for reached in REACHED)
        if self.strategy == "tensor":
            return compute + fast, compute + middle, compute + slow
        return max(compute, fast), float(overlapped(compute, middle)), compute + slow


ALONE = Parallel(1, "zero1", Link("none", 1.0, [], ""))  # one GPU, which sends nothing
