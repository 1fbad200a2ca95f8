"""Methods that start from a model that was trained first, and train it on, all of it or a few parameters.

That model is the dense one of the setting, trained with AdamW on the built-in airline corpus, or on the first half of
its training split where it is the target itself, and kept in the user's cache. Its words come as the ids of the
target's vocabulary; its heads are not passed on: the target's start again, and every method trains them. One model, of
seed 0, serves all seeds of a comparison. What it costs is among the facts of a run, and no part of the run's own time.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bttlab.data import Corpus, Vocabulary, encode, load_corpus
from bttlab.model.config import LINEARS
from bttlab.tensor import adapt
from bttlab.util.files import write_file
from bttlab.util.terminal import say
from bttlab_methods.method import Method
from bttlab_methods.setting import BATCH, Setting
from bttlab_methods.training import LEARNING_RATE, Training

SOURCE = "airline"
VERSION = 1  # of what is trained, besides what `_digest` names


@dataclass(frozen=True)
class FullFinetuning(Method):
    """Go on training all parameters of a model that was trained on another corpus first.

    The other methods train a part of them: what full fine-tuning reaches is what they are measured by.
    """

    name = "full-finetuning"
    family = "parameter-efficient"
    source = "Howard and Ruder, arXiv 1801.06146; the reference of Houlsby et al., arXiv 1902.00751, section 3"
    # Its parameters are given, all of them those of dense layers, and which of them are trained.
    changes = frozenset({"initialisation", "trained parameters"})
    excludes = frozenset({"linear layers", "embedding"})
    ranges = ("pretraining in [1, inf)",)

    pretraining: int = 4500  # samples that the model is trained on first
    rate_factor: float = 1.0  # of the learning rate

    def change_setting(self, setting: Setting) -> Setting:
        return setting.scaled(self.rate_factor)

    def change_model(self, training: Training) -> None:
        parameters, cost = pretrained(training.setting, training.vocabulary, self.pretraining)
        training.extra["pretraining"] = cost
        training.model.load_state_dict(parameters, strict=False)
        self.choose_trained(training)
        for head in (training.model.intent_head, training.model.slot_head):
            head.requires_grad_(True)

    def choose_trained(self, training: Training) -> None:
        """Change the model and say which of its parameters are trained: here all."""

    def finish(self, training: Training) -> dict[str, Any]:
        return dict(training.extra["pretraining"])


def pretrained(setting: Setting, vocabulary: Vocabulary, samples: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a model trained first, without its heads, from the cache or by training it now; and what it cost.

    Setting and vocabulary are those of the run that starts from it. The cost is "pretraining_samples" and
    "pretraining_seconds" (processor time; on a GPU wall time), measured when it was trained.
    """
    import platformdirs
    from safetensors import safe_open
    from safetensors.torch import load_file

    source = source_corpus(setting.corpus)
    config = replace(setting.config, intents=len(source.intent_labels), slots=len(source.slot_labels))
    first = Setting(source, config, samples, BATCH, device=setting.device)
    path = platformdirs.user_cache_path("bttlab") / "pretrained" / f"{_digest(first, vocabulary)}.safetensors"
    if not path.exists():
        _train(first, vocabulary, path)
    with safe_open(path, "pt") as file:
        seconds = float(file.metadata()["seconds"])
    cost = {"pretraining_samples": samples, "pretraining_seconds": seconds}
    return load_file(path, device=setting.device), cost


def source_corpus(target: Corpus) -> Corpus:
    source = load_corpus(SOURCE)
    if (source.train.words, source.train.slots) == (target.train.words, target.train.slots):
        return replace(source, train=source.train[: len(source.train) // 2])
    return source


def _digest(setting: Setting, vocabulary: Vocabulary) -> str:
    train = setting.corpus.train
    made_of = [VERSION, torch.__version__, LEARNING_RATE, setting.config.to_dict()]
    made_of.append([setting.samples, setting.batch, setting.seed, setting.device])
    made_of.append([train.words, train.slots, train.intents])
    made_of.append(encode(train, vocabulary, setting.corpus, setting.config).tokens.tolist())
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]


def _train(setting: Setting, vocabulary: Vocabulary, path: Path) -> None:
    from safetensors.torch import save

    say(f"bttlab: training a model on {setting.samples} samples of {SOURCE} first, once")
    state = torch.get_rng_state()
    training = Training(setting)
    training.vocabulary = vocabulary
    training.samples = encode(setting.corpus.train, vocabulary, setting.corpus, setting.config)
    training.run()
    torch.set_rng_state(state)
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {name: value.contiguous() for name, value in training.model.state_dict().items() if "_head." not in name}
    write_file(path, save(body, {"seconds": f"{training.seconds_spent:.3f}"}))


@dataclass(frozen=True)
class LoRA(FullFinetuning):
    """Freeze a model trained first, and train a product of two thin matrices beside each of its linear layers."""

    name = "lora"
    source = "Hu et al., arXiv 2106.09685, section 4.1; peft"
    changes = FullFinetuning.changes | {"linear layers"}

    rank: int = 8  # of what is added to a weight matrix
    alpha: float = 16.0  # what is added counts alpha / rank
    rate_factor: float = 4.0

    def choose_trained(self, training: Training) -> None:
        # peft freezes all else.
        from peft import LoraConfig, inject_adapter_in_model

        layers = [*LINEARS, "intent_pooler", "slot_pooler"]
        inject_adapter_in_model(LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=layers), training.model)

    def finish(self, training: Training) -> dict[str, Any]:
        # The products are added to the matrices: the model is scored as one without LoRA.
        from peft.tuners.tuners_utils import BaseTunerLayer

        for module in training.model.modules():
            if isinstance(module, BaseTunerLayer):
                module.merge()
        return super().finish(training)


@dataclass(frozen=True)
class LoRETTA(FullFinetuning):
    """Freeze a model trained first, and train a tensor train beside each linear layer, by `bttlab.tensor.adapt`."""

    name = "loretta"
    source = "Yang et al., arXiv 2402.11417 (LoRETTA_rep; LoRA's two matrices are one train here)"
    changes = FullFinetuning.changes | {"linear layers"}
    ranges = (*FullFinetuning.ranges, "rank in [1, inf)")

    rank: int = 5  # of every bond, the one that is LoRA's rank among them
    rate_factor: float = 20.0

    def choose_trained(self, training: Training) -> None:
        adapt(training.model, self.rank, [*LINEARS, "intent_pooler", "slot_pooler"])


@dataclass(frozen=True)
class Adapters(FullFinetuning):
    """Freeze a model trained first, and train a bottleneck behind each attention and feed-forward block.

    The norms of the encoders are trained too, as in the paper. peft has no such adapter for modules at large.
    """

    name = "adapters"
    source = "Houlsby et al., arXiv 1902.00751, section 2.1"
    changes = FullFinetuning.changes | {"linear layers"}

    size: int = 32  # features of the bottleneck
    rate_factor: float = 4.0

    def choose_trained(self, training: Training) -> None:
        training.model.requires_grad_(False)
        for encoder in training.model.encoders:
            for name in ("output", "second"):
                setattr(encoder, name, Adapted(getattr(encoder, name), self.size).to(training.device))
            encoder.attention_norm.requires_grad_(True)
            encoder.feed_forward_norm.requires_grad_(True)


class Adapted(nn.Module):
    """y + up(GELU(down(y))) of y = layer(x), with `size` features between `down` and `up`.

    `up` starts at 0, so that at first nothing changes.
    """

    def __init__(self, layer: nn.Linear, size: int):
        super().__init__()
        self.layer = layer
        self.down, self.up = nn.Linear(layer.out_features, size), nn.Linear(size, layer.out_features)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y + self.up(F.gelu(self.down(y)))


@dataclass(frozen=True)
class PromptTuning(FullFinetuning):
    """Freeze a model trained first, and train vectors that stand before the embedded tokens, and the heads.

    The encoders see them as they see tokens; what comes out at their places is dropped. They start as embeddings of
    words at random.
    """

    name = "prompt-tuning"
    source = "Lester et al., arXiv 2104.08691, section 2"
    ranges = (*FullFinetuning.ranges, "length in [1, inf)")
    changes = FullFinetuning.changes | {"tokens"}

    length: int = 8  # vectors
    rate_factor: float = 10.0

    def choose_trained(self, training: Training) -> None:
        model = training.model
        model.requires_grad_(False)
        words = torch.from_numpy(training.random.integers(0, model.config.vocabulary_size, self.length))
        with torch.no_grad():
            model.prompt = nn.Parameter(model.embedding.norm(model.embedding.word(words.to(training.device))))

        def prepend(module: nn.Module, inputs: tuple, x: Tensor) -> Tensor:
            return torch.cat([model.prompt.expand(*x.shape[:-2], *model.prompt.shape), x], -2)

        model.embedding.register_forward_hook(prepend)
        model.encoders[-1].register_forward_hook(lambda module, inputs, x: x[..., self.length :, :])
