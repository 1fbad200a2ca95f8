"""Receipts: what figures were made of, and the command that makes them again. A file that was changed is refused."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bttlab.model import ModelConfig, ModuleConfig, config_of
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.quantities import drop_missing_bands, to_json
from bttlab.util.reading import MB, parse_json, read_text
from bttlab.util.renamed import renamed
from bttlab.util.settings import RecordError, from_values, settings

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Figure": "ReceiptQuantity", "figures_of": "quantities_of"})

FORMAT = 1
MOST_BYTES = 20 * MB
SAME, OF_PYTORCH, READING = 0.0, 1e-3, None  # tolerances: of bits, of PyTorch on another processor, of a meter


@settings(RecordError)
class ReceiptQuantity:
    """A number with unit and provenance, and how near a repetition comes."""

    value: float
    unit: str
    provenance: Literal["measured", "modelled", "published", "extrapolated"]
    how: str
    # low, high: the band
    low: float | None = None
    high: float | None = None
    # largest relative difference of a repetition: 0 if it has the same bits, None if a meter was read
    tolerance: float | None = None

    def repeats(self, again: "ReceiptQuantity") -> bool:
        """Return whether a repetition is equal, within the tolerance; of a meter's reading, whether the unit is."""
        if (self.unit, self.provenance) != (again.unit, again.provenance):
            return False
        if self.tolerance is None:
            return True
        pairs = ((self.value, again.value), (self.low, again.low), (self.high, again.high))
        return all(_near(kept, found, self.tolerance) for kept, found in pairs)


@settings(RecordError)
class ProgramUsed:
    """A program of the card: of which model, in which order of contraction, and the SHA-256 of its image."""

    config: dict[str, Any]  # fields of `ModelConfig` that are not the paper's
    flow: str
    sha256: str
    sums: bool = False  # as for `bttlab.compiler.program.Options`

    @classmethod
    def of(cls, config: ModelConfig, flow: str, sha256: str, sums: bool = False) -> "ProgramUsed":
        paper = ModelConfig().to_dict()
        values = {name: value for name, value in config.to_dict().items() if value != paper.get(name)}
        return cls(json.loads(json.dumps(values)), flow, sha256, sums)

    @property
    def name(self) -> str:
        values = {"encoders": ModelConfig().encoders} | self.config
        model = ", ".join(f"{name} {value}" for name, value in values.items())
        return f"{model}, {self.flow}{', sums' if self.sums else ''}"

    def is_current(self) -> bool:
        """Return whether the compiler makes this program today."""
        from bttlab.compiler.program import Options, compile

        try:
            config: Any = config_of(ModelConfig().to_dict() | self.config)
            return compile(config, Options(self.flow, sums=self.sums)).sha256 == self.sha256
        except BttlabError:  # the model no longer fits
            return False


@settings(RecordError)
class Receipt:
    title: str
    command: list[str]  # of `bttlab` without this name; of a checkout's tool, with "python" before it
    figures: dict[str, ReceiptQuantity]
    programs: list[ProgramUsed] = field(default_factory=list)  # empty if no program of the card was run
    corpora: dict[str, str] = field(default_factory=dict)  # name of a corpus, or of lengths, to SHA-256
    initial: str = ""  # SHA-256 of the initial parameters, or empty if there are several
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)  # SHA-256 of results with promised bits
    date: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    dear: str = ""  # how long a repetition takes, if `make figures` leaves it out
    parts: dict[str, list[str]] = field(default_factory=dict)  # commands that repeat some figures: those named PART.…
    details: Any = None  # traces and tables that the figures are made of

    def __str__(self) -> str:
        lines = [self.title, f"  bttlab {' '.join(self.command)}"]
        return "\n".join([*lines, *(f"  {name}: {_words(figure)}" for name, figure in self.figures.items())])

    @property
    def sha256(self) -> str:
        """SHA-256 of the content, which the file names."""
        return _digest(self._values())

    def _values(self) -> dict[str, Any]:
        return json.loads(to_json(asdict(self, dict_factory=drop_missing_bands)))

    def write(self, path: str | os.PathLike, option: str = "--receipt") -> None:
        """Write the receipt atomically; errors as of `bttlab.util.files.check_output`."""
        values = self._values()
        sealed = {"receipt": FORMAT, "sha256": _digest(values), **values}
        text = re.sub(r"\[[-+\d.,eE\s]*\]", lambda match: " ".join(match[0].split()), json.dumps(sealed, indent=1))
        write_file(Path(path), text + "\n", option)

    @classmethod
    def read(cls, path: str | os.PathLike) -> "Receipt":
        """Read a receipt.

        Raises RecordError if the file is none, or was changed after it was written.
        """
        return cls.of_json(read_text(path, RecordError, most=MOST_BYTES), str(path))

    @classmethod
    def of_json(cls, text: str, path: str) -> "Receipt":
        try:
            values = parse_json(text)
        except ValueError as error:
            raise RecordError(f"{path} is no receipt: no JSON ({error})") from None
        if not is_receipt(values):
            raise RecordError(f"{path} is no receipt: it has no entry 'receipt'; make one with --receipt FILE")
        if values.pop("receipt") != FORMAT:
            raise RecordError(f"{path} is a receipt of another format than {FORMAT}; make it again with this bttlab")
        sealed = values.pop("sha256", None)
        if sealed != _digest(values):
            raise RecordError(
                f"{path} was changed after it was made: its content has the SHA-256 {_digest(values)[:12]}…, not "
                f"{str(sealed)[:12]}… as it says; take the unchanged file, or make it again"
            )
        try:
            return from_values(cls, values)
        except BttlabError as error:
            raise RecordError(f"{path} is no receipt: {error}; make one with --receipt FILE") from None

    def stale(self) -> list[str]:
        """Return the names of the programs that the compiler no longer makes as they were."""
        return [program.name for program in self.programs if not program.is_current()]

    def part(self, name: str) -> "Receipt":
        """Return what a part's command repeats. Raises RecordError if there is no such part."""
        if name not in self.parts:
            raise RecordError(f"no part {name!r}; there are: {', '.join(self.parts) or 'none'}")
        figures = {key.removeprefix(f"{name}."): f for key, f in self.figures.items() if key.startswith(f"{name}.")}
        results = {"parameters": self.results[name]} if name in self.results else {}
        whole = {"programs": [], "parts": {}, "details": None}  # of all parts
        named = {corpus: digest for corpus, digest in self.corpora.items() if corpus in self.parts[name]}
        return replace(
            self, command=self.parts[name], figures=figures, results=results, corpora=named or self.corpora, **whole
        )

    def differences(self, again: "Receipt") -> list[str]:
        """Return a sentence for everything in which a repetition differs, in the order of the receipt."""
        found = []
        mine, others = ({one.name: one.sha256 for one in each.programs} for each in (self, again))
        for kind, kept, now in (
            ("program", mine, others),
            ("corpus", self.corpora, again.corpora),
            ("initial parameters", {"": self.initial}, {"": again.initial}),
            ("result", self.results, again.results),
        ):
            for name in kept:
                if kept[name] and kept[name] != now.get(name):
                    was = (kept[name][:12], (now.get(name) or "none")[:12])
                    found.append(f"{kind} {name}".strip() + ": SHA-256 {}… is now {}…".format(*was))
        for name, value in self.settings.items():
            if again.settings.get(name) != value:
                found.append(f"setting {name}: {value!r} is now {again.settings.get(name)!r}")
        for name, figure in self.figures.items():
            other = again.figures.get(name)
            if other is None:
                found.append(f"{name}: {_words(figure)} is now missing")
            elif not figure.repeats(other):
                found.append(f"{name}: {_words(figure)} is now {_words(other)}")
        return found

    def readings(self, again: "Receipt") -> list[str]:
        """Return a sentence for every reading of a meter: a repetition has another one."""
        pairs = ((name, one, again.figures.get(name)) for name, one in self.figures.items() if one.tolerance is None)
        return [f"{name}: {_words(one)}, this time {_words(now)}" for name, one, now in pairs if now is not None]


def is_receipt(values: Any) -> bool:
    return isinstance(values, dict) and "receipt" in values


def details_of(path: str | os.PathLike) -> Any:
    """Return the details of a receipt's file, or, of an older record, all that it has; RecordError if it is damaged."""
    text = read_text(path, RecordError, most=MOST_BYTES)
    try:
        values = parse_json(text)
    except ValueError as error:
        raise RecordError(f"{path} is no record: no JSON ({error})") from None
    return Receipt.of_json(text, str(path)).details if is_receipt(values) else values


def settings_of(config: ModelConfig | ModuleConfig, **others: Any) -> dict[str, Any]:
    """Return settings of a model and others, as JSON has them."""
    return json.loads(json.dumps({"model": config.to_dict()} | others))


def quantities_of(values: Mapping[str, Mapping[str, Any]], tolerance: float | None) -> dict[str, ReceiptQuantity]:
    """Return figures of `Quantity`'s dicts, without those that have no value."""
    return {
        name: from_values(
            ReceiptQuantity, {key: each[key] for key in each if key != "model"} | {"tolerance": tolerance}
        )
        for name, each in values.items()
        if each["value"] is not None
    }


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _near(kept: float | None, found: float | None, tolerance: float) -> bool:
    if kept is None or found is None:
        return kept is found
    return abs(found - kept) <= tolerance * abs(kept)


def _words(figure: ReceiptQuantity) -> str:
    band = f" ({figure.low:.6g} to {figure.high:.6g})" if figure.low is not None and figure.high is not None else ""
    unit = "" if figure.unit == "1" else f" {figure.unit}"
    return f"{figure.value:.6g}{band}{unit} ({figure.provenance})"
