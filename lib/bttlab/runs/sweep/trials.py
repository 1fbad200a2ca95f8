"""Trials of a specification: complete configurations, each with its digest as id."""

import functools
import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bttlab.compiler.module import ModuleModel
from bttlab.compiler.module_file import module_of_source, read_source
from bttlab.compiler.program import Options, compile
from bttlab.data import Corpus, Vocabulary, encode, load_corpus
from bttlab.data.corpus import SPLIT_NAMES
from bttlab.estimate.card import CLOCK_MHZ, estimate
from bttlab.model import PAPER_FLOW, ModelConfig, Optimizer
from bttlab.runs.module import check_labels
from bttlab.runs.recipe import OPTIMIZER_KEYS, TABLES, flat, settings_of
from bttlab.runs.record import RunRecord
from bttlab.runs.scores import score_names
from bttlab.runs.settings import MODEL_KEYS, RunSettings, corpus_digest, fitted_to, model_for
from bttlab.runs.sweep.spec import SpecError, SweepSpec
from bttlab.util.errors import BttlabError
from bttlab.util.settings import nearest

CARD, EMULATED, REFERENCE = "auto", "emulated", "reference"
DEVICES = (EMULATED, REFERENCE, CARD)  # "auto" waits for a real card, if there is one
DEFAULTS = {"data": "airline", "device": EMULATED}
_RUN = [setting.name for setting in fields(RunSettings) if setting.name not in ("config", *TABLES)]
_PARTS = [f"{table}.{setting.name}" for table, kind in TABLES.items() for setting in fields(kind)]
KEYS = {
    "training": ["model", *MODEL_KEYS, *_RUN, *OPTIMIZER_KEYS, *_PARTS],
    "estimate": [*MODEL_KEYS, "optimizer", "data", "flow", "clock_mhz"],
}


@dataclass(frozen=True)
class Trial:
    id: str  # equal configurations and corpora have equal ids
    varied: dict[str, Any]  # the values of the keys that the sweep varies
    configuration: dict[str, Any]  # all of it, as a run's record has it
    settings: RunSettings | None  # of a training
    corpus: Corpus
    module: tuple[bytes, Mapping[str, bytes]] | None = None  # source of a module's file, and of those that it imports

    @property
    def name(self) -> str:
        return " ".join(f"{key}={_brief(value)}" for key, value in self.varied.items())

    def record(self, sweep: str, device: str) -> RunRecord:
        kind = "estimate" if self.settings is None else "training"
        return RunRecord(kind, self.name, self.configuration, device, self.id, sweep=sweep)


class TrialMaker:
    """Makes the trials of a sweep; reads each corpus and each module's file once.

    Raises SpecError if a key is none of the configuration's.
    """

    def __init__(self, spec: SweepSpec):
        self.spec = spec
        self._corpus = functools.cache(_read_corpus)
        self._source = functools.cache(read_source)  # a file that changes while trials run does not mix with these
        self._module = functools.cache(
            lambda path, name, length: module_of_source(self._source(path), path, name, length)
        )
        for part in ("fixed", "vary"):
            for key in getattr(spec, part):
                if key not in KEYS[spec.kind]:
                    raise SpecError(f"{part}: no key {key!r} in the configuration{nearest(str(key), KEYS[spec.kind])}")

    def make(self, varied: Mapping[str, Any]) -> Trial:
        """Return the trial with some values of the varied keys.

        Raises SpecError if a value is outside its range, or the corpus is not here or does not fit the model.
        """
        values, settings, module = dict(self.spec.fixed) | dict(varied), None, None
        try:
            if self.spec.kind == "estimate":
                corpus, sha256 = self._corpus(values.get("data", DEFAULTS["data"]), "unk")
                _, configuration = estimated_model(values, corpus)
            else:
                module = self._module_of(values)
                settings = self._settings(values, module)
                corpus, sha256 = self._corpus(settings.data, settings.unknown_labels)
                configuration = flat(settings)
        except (BttlabError, TypeError, ValueError) as error:
            raise SpecError(f"trial {', '.join(f'{k} = {v!r}' for k, v in varied.items())}: {error}") from None
        decisive = {key: value for key, value in configuration.items() if key not in ("data", "recipe", "keep")}
        id = digest_of({"kind": self.spec.kind, "corpus": sha256, **decisive})
        if module is not None:
            configuration["model"] = values["model"]  # as the specification has it
        return Trial(
            id, dict(varied), configuration, settings, corpus, None if module is None else (module.source, module.files)
        )

    def _settings(self, values: dict[str, Any], module: ModuleModel | None) -> RunSettings:
        """Return the settings of a training that the corpus and, unless it trains elsewhere, the card fit."""
        model = values.get("model")
        of_module = ("model", "sequence_length") if module else ()
        given = {key: value for key, value in values.items() if key not in of_module}
        settings = settings_of(DEFAULTS | given, module and module.config)
        self._check_objective(settings.config.task, model)
        if settings.device not in DEVICES:
            raise SpecError(f"device is {settings.device!r}: choose one of {', '.join(DEVICES)}")
        corpus, _ = self._corpus(settings.data, settings.unknown_labels)
        if module is not None:
            check_labels(corpus, module)
        settings = fitted_to(corpus, settings, grows="vocabulary_size" not in values)
        if settings.device != REFERENCE:
            trained: Any = module or settings.config
            compile(trained, Options(settings.flow))  # whether the card holds it
        words = Vocabulary.from_sentences(corpus.train.words[:1], settings.config.vocabulary_size)
        encode(corpus.train[:1], words, corpus, settings.config)  # whether its labels fit the model
        return settings

    def _module_of(self, values: Mapping[str, Any]) -> ModuleModel | None:
        """Return the module of FILE.py:CLASS, if a training is of one; it takes its sequence length from the values."""
        if (model := values.get("model")) is None:
            return None
        path, _, name = str(model).rpartition(":")
        if not path.endswith(".py") or not name:
            raise SpecError(f"model is {model!r}: give FILE.py:CLASS, or sizes, as encoders")
        if sizes := [key for key in MODEL_KEYS if key in values and key != "sequence_length"]:
            raise SpecError(f"{sizes[0]}: a module has sizes of its own; leave it out beside model")
        return self._module(Path(path), name, values.get("sequence_length"))

    def _check_objective(self, task: str, model: Any) -> None:
        split, _, score = (self.spec.objective or "").partition(".")
        if split in SPLIT_NAMES and score not in (names := score_names(task)):
            raise SpecError(
                f"objective is {self.spec.objective}, and {model or 'the model'} is for {task}: choose one of "
                f"{', '.join(f'{split}.{name}' for name in names)}"
            )


@functools.cache
def takes_fractions(key: str) -> bool:
    """Return whether a key of the configuration is a number with a fraction, by the type of its setting."""
    if key == "clock_mhz":
        return True
    table, _, part = key.rpartition(".")
    kinds = [TABLES[table]] if table in TABLES else [RunSettings, ModelConfig, Optimizer]
    known = (typing.get_type_hints(kind).get(part) for kind in kinds)
    return any(hint is float or float in typing.get_args(hint) for hint in known)


def _read_corpus(data: str, unknown_labels: str) -> tuple[Corpus, str]:
    corpus = load_corpus(data, unknown_labels)
    return corpus, corpus_digest(corpus)


def estimated_model(values: Mapping[str, Any], corpus: Corpus) -> tuple[ModelConfig, dict[str, Any]]:
    """Return the model of a trial of kind "estimate", and the configuration completed with defaults.

    The model fits the corpus, as one that is trained on it. Raises BttlabError if a value is outside its range, or the
    machine does not hold the model.
    """
    values = dict(values)
    completed = {
        "optimizer": Optimizer(values.pop("optimizer", "sgd")).name,
        "flow": values.pop("flow", PAPER_FLOW),
        "clock_mhz": values.pop("clock_mhz", CLOCK_MHZ),
        "data": values.pop("data", DEFAULTS["data"]),
    }
    model = model_for(corpus, ModelConfig.of_sizes(values), grows="vocabulary_size" not in values)
    estimate(model, flow=completed["flow"], clock_mhz=completed["clock_mhz"])  # is refused if it cannot be
    return model, model.to_dict() | completed


def digest_of(values: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits of the digest of values, in any order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def _brief(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "x".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
