"""Trials of a specification: complete configurations, each with its digest as id."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bttlab.compiler.compiled import compiled_program
from bttlab.data import Corpus, Vocabulary, encode, load_corpus
from bttlab.data.corpus import SPLIT_NAMES
from bttlab.estimate.card import CLOCK_MHZ, estimate
from bttlab.model import PAPER_FLOW, ModelConfig, Optimizer
from bttlab.runs.module import check_labels
from bttlab.runs.recipe import OPTIMIZER_KEYS, TABLES, flat, settings_of
from bttlab.runs.scores import score_names
from bttlab.runs.settings import MODEL_KEYS, RunSettings, corpus_digest
from bttlab.runs.sweep.spec import SpecError, SweepSpec
from bttlab.util.errors import BttlabError
from bttlab.util.settings import nearest

if TYPE_CHECKING:
    from bttlab.compiler.module import ModuleModel

CARD, EMULATED, REFERENCE = "auto", "emulated", "reference"
DEVICES = (EMULATED, REFERENCE, CARD)  # "auto" waits for a real card, if there is one
DEFAULTS = {"data": "airline", "device": EMULATED}
_RUN = [one.name for one in fields(RunSettings) if one.name not in ("config", *TABLES)]
_PARTS = [f"{table}.{one.name}" for table, kind in TABLES.items() for one in fields(kind)]
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
    module: "ModuleModel | None" = None  # of a training whose model is a module

    @property
    def name(self) -> str:
        return " ".join(f"{key}={_brief(value)}" for key, value in self.varied.items())


class TrialMaker:
    """Makes the trials of a sweep; reads each corpus and each module's file once.

    Raises SpecError if a key is none of the configuration's.
    """

    def __init__(self, spec: SweepSpec):
        self.spec = spec
        self._corpus = functools.cache(_read_corpus)
        self._tokens = functools.cache(
            lambda data, unknown_labels, word_classes: len(
                Vocabulary.from_sentences(self._corpus(data, unknown_labels)[0].train.words, None, word_classes)
            )
        )
        self._sources: dict[Path, bytes] = {}
        self._modules: dict[tuple[str, int | None], ModuleModel] = {}
        for part in ("fixed", "vary"):
            for key in getattr(spec, part):
                if key not in KEYS[spec.kind]:
                    raise SpecError(f"{part}: no key {key!r} in the configuration{nearest(str(key), KEYS[spec.kind])}")

    def make(self, varied: Mapping[str, Any]) -> Trial:
        """Return the trial with some values of the varied keys.

        Raises SpecError if a value is outside its range, or the corpus is not here or does not fit the model.
        """
        values = dict(self.spec.fixed) | dict(varied)
        try:
            return self._training(values, varied) if self.spec.kind == "training" else self._estimate(values, varied)
        except (BttlabError, TypeError, ValueError) as error:
            raise SpecError(f"trial {', '.join(f'{k} = {v!r}' for k, v in varied.items())}: {error}") from None

    def _training(self, values: dict[str, Any], varied: Mapping[str, Any]) -> Trial:
        values = dict(values)
        model = values.pop("model", None)
        module = None if model is None else self._module(model, values)
        settings = settings_of(DEFAULTS | values, module and module.config)
        self._check_objective(settings.config.task, model)
        if settings.device not in DEVICES:
            raise SpecError(f"device is {settings.device!r}: choose one of {', '.join(DEVICES)}")
        corpus, sha256 = self._corpus(settings.data, settings.unknown_labels)
        if module is not None:
            check_labels(corpus, module)
        elif "vocabulary_size" not in values and isinstance(
            settings.config, ModelConfig
        ):  # as bttlab train has it: room for all words of the corpus
            tokens = self._tokens(settings.data, settings.unknown_labels, settings.word_classes)
            if tokens > settings.config.vocabulary_size:
                settings = replace(settings, config=settings.config.with_vocabulary(tokens))
        if settings.device != REFERENCE:
            trained: Any = module or settings.config
            compiled_program(trained, flow=settings.flow)  # whether the card holds it
        words = Vocabulary.from_sentences(corpus.train.words[:1], settings.config.vocabulary_size)
        encode(corpus.train[:1], words, corpus, settings.config)  # whether its labels fit the model
        configuration = flat(settings)
        decisive = {key: value for key, value in configuration.items() if key not in ("data", "recipe", "keep")}
        id = digest_of({"kind": "training", "corpus": sha256, **decisive})
        if module is not None:
            configuration["model"] = model  # as the specification has it
        return Trial(id, dict(varied), configuration, settings, corpus, module)

    def _module(self, model: Any, values: dict[str, Any]) -> "ModuleModel":
        """Return the module of FILE.py:CLASS; takes its sequence length from the values."""
        from bttlab.compiler.module_file import module_of_source, read_source

        path, _, name = str(model).rpartition(":")
        if not path.endswith(".py") or not name:
            raise SpecError(f"model is {model!r}: give FILE.py:CLASS, or sizes, as encoders")
        length = values.pop("sequence_length", None)
        sizes = [key for key in MODEL_KEYS if key in values]
        if sizes:
            raise SpecError(f"{sizes[0]}: a module has sizes of its own; leave it out beside model")
        if (model, length) not in self._modules:
            path = Path(path)
            if path not in self._sources:  # a file that changes while trials run does not mix with what was read
                self._sources[path] = read_source(path)
            self._modules[model, length] = module_of_source(self._sources[path], path, name, length)
        return self._modules[model, length]

    def _check_objective(self, task: str, model: str | None) -> None:
        split, _, score = (self.spec.objective or "").partition(".")
        if split in SPLIT_NAMES and score not in (names := score_names(task)):
            raise SpecError(
                f"objective is {self.spec.objective}, and {model or 'the model'} is for {task}: choose one of "
                f"{', '.join(f'{split}.{name}' for name in names)}"
            )

    def _estimate(self, values: dict[str, Any], varied: Mapping[str, Any]) -> Trial:
        _, configuration = estimated_model(values)
        corpus, sha256 = self._corpus(configuration["data"], "unk")
        decisive = {key: value for key, value in configuration.items() if key != "data"}
        id = digest_of({"kind": "estimate", "corpus": sha256, **decisive})
        return Trial(id, dict(varied), configuration, None, corpus)


def _read_corpus(data: str, unknown_labels: str) -> tuple[Corpus, str]:
    corpus = load_corpus(data, unknown_labels)
    return corpus, corpus_digest(corpus)


def estimated_model(values: Mapping[str, Any]) -> tuple[ModelConfig, dict[str, Any]]:
    """Return the model of a trial of kind "estimate", and the configuration completed with defaults.

    Raises BttlabError if a value is outside its range, or the machine does not hold the model.
    """
    values = dict(values)
    completed = {
        "optimizer": Optimizer(values.pop("optimizer", "sgd")).name,
        "flow": values.pop("flow", PAPER_FLOW),
        "clock_mhz": values.pop("clock_mhz", CLOCK_MHZ),
        "data": values.pop("data", "airline"),
    }
    model = ModelConfig.of_sizes(values)
    estimate(model, flow=completed["flow"], clock_mhz=completed["clock_mhz"])  # is refused if it cannot be
    return model, model.to_dict() | completed


def digest_of(values: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits of the digest of values, in any order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def _brief(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "x".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
