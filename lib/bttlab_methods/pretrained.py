"""The model that the parameter-efficient methods start from: dense, trained first, kept in the user's cache.

It is the dense model of the setting, trained with AdamW on the built-in airline corpus: ATIS's label scheme and a
grammar of its own. Its words come as the ids of the target's vocabulary; its heads are for its own labels, and not
passed on: the target's heads start again, and every method trains them. Where the target is the airline corpus itself,
the first half of its training split is what the model is trained on first. One model, of seed 0, serves all seeds of a
comparison. What it costs is among the facts of a run, and no part of the run's own time.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bttlab.data import Corpus, Vocabulary, encode, load_corpus
from bttlab.files import replace_whole
from bttlab.terminal import say
from bttlab_methods.method import Method
from bttlab_methods.setting import BATCH, Setting
from bttlab_methods.training import LEARNING_RATE, Training

SOURCE = "airline"
VERSION = 1  # of what is trained, besides what `_identity` names


@dataclass(frozen=True)
class FromPretrained(Method):
    """Start from a dense model that is trained first, with heads of its own.

    Parameters
    ----------
    pretraining : int
        Samples that it is trained on.
    rate_factor : float
        Of the learning rate.
    """

    family = "parameter-efficient"
    # Its parameters are given, all of them those of dense layers, and which of them are trained.
    changes = frozenset({"initialisation", "trained parameters"})
    excludes = frozenset({"linear layers", "embedding"})
    ranges = ("pretraining in [1, inf)",)

    pretraining: int = 4500
    rate_factor: float = 1.0

    def change_setting(self, setting: Setting) -> Setting:
        """Return the setting with the method's learning rate."""
        return setting.scaled(self.rate_factor)

    def change_model(self, training: Training) -> None:
        """Load the model, then let the method choose what is trained; the heads are, always."""
        parameters, cost = pretrained(training.setting, training.vocabulary, self.pretraining)
        training.extra["pretraining"] = cost
        training.model.load_state_dict(parameters, strict=False)
        self.choose_trained(training)
        for head in (training.model.intent_head, training.model.slot_head):
            head.requires_grad_(True)

    def choose_trained(self, training: Training) -> None:
        """Change the model and say which of its parameters are trained."""
        raise NotImplementedError

    def finish(self, training: Training) -> dict[str, Any]:
        """Return what the model trained first cost."""
        return dict(training.extra["pretraining"])


def pretrained(setting: Setting, vocabulary: Vocabulary, samples: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a model trained first, from the cache or by training it now.

    Parameters
    ----------
    setting : Setting
        Of the run that starts from it.
    vocabulary : Vocabulary
        Of the run's corpus.
    samples : int
        To train on.

    Returns
    -------
    parameters : dict of str to Tensor
        Without those of the heads.
    cost : dict
        "pretraining_samples" and "pretraining_seconds" (processor time; on a GPU wall time), measured when it
        was trained.
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
    made_of = [
        VERSION,
        torch.__version__,
        LEARNING_RATE,
        setting.config.to_dict(),
        [setting.samples, setting.batch, setting.seed, setting.device],
        [train.words, train.slots, train.intents],
        encode(train, vocabulary, setting.corpus, setting.config).tokens.tolist(),
    ]
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
    replace_whole(path, save(_body(training.model.state_dict()), {"seconds": f"{training.seconds_spent:.3f}"}))


def _body(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in parameters.items() if "_head." not in name}
