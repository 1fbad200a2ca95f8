"""Explore designs with sliders, a menu of cards and a clickable figure: time, energy, utilisation (modelled).

Each point is a program. Compiling and timing one takes about a second, so a background thread does it.
"""

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

import ipywidgets as widgets
import numpy as np

from bttlab.estimate.card import CLOCK_MHZ, LEAST_CLOCK, MOST_CLOCK, NOT_CLOSED, Estimate, estimate, scheduled_clock
from bttlab.estimate.constants import MODEL_VERSION
from bttlab.estimate.counts import SHOWN_UNITS
from bttlab.estimate.facts import NAMES
from bttlab.estimate.recorded import RESOURCES
from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.explorer import Explorer, control, row, slider
from bttlab.lab.workload import budget
from bttlab.model import FLOW_TITLES, OPTIMIZERS, PAPER_FLOW, ModelConfig
from bttlab.util.errors import BttlabError

RANKS = budget((4, 8, 12, 16), (8, 12))
MARKERS = dict(zip(FLOW_TITLES, "osD", strict=True))
MOST_ENCODERS = 8
FEED_FORWARD = ("first", "second")  # of an encoder's layers


@dataclass(frozen=True)
class Design:
    """A model, its optimizer and the machine's clock, of which an explorer shows what it takes.

    Parameters
    ----------
    encoders : int
        Number of encoders.
    rank : int
        Every internal rank of the linear layers.
    flow : str
        Order of contraction: one of `bttlab.model.FLOW_TITLES`.
    optimizer : {"sgd", "momentum", "adamw"}
        Update rule.
    clock_mhz : int
        Of the kernel.
    feed_forward : int, optional
        Rank of the two layers between which GELU is; by default `rank`.
    card : str
        One of `bttlab.estimate.facts.NAMES`.
    """

    # encoders, rank: of the model; the rank is that of its linear layers, unless they have their own
    encoders: int = 2
    rank: int = 12
    flow: str = PAPER_FLOW
    optimizer: str = "sgd"
    clock_mhz: int = CLOCK_MHZ
    feed_forward: int | None = None
    card: str = NAMES[0]

    def __post_init__(self) -> None:
        if self.feed_forward is None:
            object.__setattr__(self, "feed_forward", self.rank)

    @property
    def program(self) -> "Design":
        """The same on the U50 at the schedule's clock: another card, or a slower clock, needs no compilation."""
        return replace(self, clock_mhz=scheduled_clock(self.clock_mhz), card=NAMES[0])

    def estimate(self, lengths: Mapping[int, int]) -> Estimate:
        """Return what the model of the card says; errors as for `bttlab.estimate.card.estimate`."""
        ranks = {}
        if self.feed_forward != self.rank:
            ranks = {f"encoders.{i}.{part}": self.feed_forward for i in range(self.encoders) for part in FEED_FORWARD}
        model = ModelConfig(encoders=self.encoders, linear_rank=self.rank, ranks=ranks)
        return estimate(model, lengths, self.optimizer, self.flow, self.clock_mhz, card=self.card)

    def __str__(self) -> str:
        rank = f"{self.rank}" if self.feed_forward == self.rank else f"{self.rank} and {self.feed_forward}"
        card = "" if self.card == NAMES[0] else f", {self.card}"
        encoders = f"{self.encoders} encoder{'s' * (self.encoders != 1)}"
        return f"{encoders}, rank {rank}, {FLOW_TITLES[self.flow]}, {self.optimizer}, {self.clock_mhz} MHz{card}"


class Programs:
    """Estimates of designs; a thread compiles each program once."""

    def __init__(self, lengths: Mapping[int, int], done):
        self._lengths, self._done = dict(lengths), done
        self._made: dict[Design, Estimate | BttlabError] = {}
        self._wanted: list[Design] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def find(self, design: Design) -> Estimate | None:
        """Return a design's estimate; None while its program is not there.

        Raises BttlabError if there is none: the machine does not hold the model.
        """
        made = self._made.get(design.program)
        if isinstance(made, BttlabError):
            raise made
        return made.on_card(design.card).at_clock(design.clock_mhz) if made else None

    def refusals(self, designs: list[Design]) -> int:
        """Return how many designs the machine does not hold, as far as it is known."""
        return sum(isinstance(self._made.get(design.program), BttlabError) for design in designs)

    def want(self, designs: list[Design]) -> int:
        """Ask for programs, the first of them first, and for no others; returns how many are not there yet."""
        with self._changed:
            self._wanted = [d for d in dict.fromkeys(d.program for d in designs) if d not in self._made]
            if self._wanted and self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
            return len(self._wanted)

    def wait(self, seconds: float) -> bool:
        """Wait until nothing is wanted; returns whether that was so in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._wanted:
                    self._thread = None
                    self._changed.notify_all()
                    return
                design = self._wanted[0]
            try:
                made = design.estimate(self._lengths)
            except BttlabError as error:
                made = error
            with self._changed:
                self._made[design] = made
                self._wanted = [d for d in self._wanted if d != design]
            self._done()


def grid(encoders: int) -> list[Design]:
    """Return the programs that are drawn beside each other."""
    return [Design(encoders, rank, flow) for flow in FLOW_TITLES for rank in RANKS]


class DesignExplorer(Explorer):
    """Move the sliders or click on a point to choose a design.

    Parameters
    ----------
    lengths : mapping of int to int
        Number of samples of an epoch by their number of tokens.
    design : Design
        Chosen at first.
    """

    def __init__(self, lengths: Mapping[int, int], design: Design):
        self.encoders = slider(design.encoders, 1, MOST_ENCODERS, "encoders")
        self.rank = slider(design.rank, 1, max(RANKS), "rank")
        self.feed_forward = slider(design.feed_forward, 1, max(RANKS), "feed-forward")
        self.clock = slider(design.clock_mhz, LEAST_CLOCK, MOST_CLOCK, "clock (MHz)")
        options = [(words, name) for name, words in FLOW_TITLES.items()]
        self.flow = control(widgets.Dropdown, "flow", options=options, value=design.flow)
        self.optimizer = control(widgets.Dropdown, "optimizer", options=tuple(OPTIMIZERS), value=design.optimizer)
        self.card = control(widgets.Dropdown, "card", options=NAMES, value=design.card)
        self.design, self.estimate = design, None
        self.programs = Programs(lengths, self.refresh)
        self._controls = (self.encoders, self.rank, self.flow, self.optimizer, self.clock, self.feed_forward, self.card)
        self.rank.observe(self._follow, "value")
        figures = new_figure(4.6, 4.2), new_figure(3.7, 4.2)
        self._space, self._machine = (figure.subplots() for figure in figures)
        pairs = (self.encoders, self.rank), (self.feed_forward, self.flow), (self.clock, self.optimizer), (self.card,)
        super().__init__(*figures, controls=[row(*pair) for pair in pairs])
        figures[0].canvas.mpl_connect("button_press_event", self._click)

    def choose(self, design: Design) -> None:
        first = (design.encoders, design.rank, design.flow)
        chosen = (*first, design.optimizer, design.clock_mhz, design.feed_forward, design.card)
        with self.held():
            for chosen_control, value in zip(self._controls, chosen, strict=True):
                chosen_control.value = value
        self.refresh()

    def _follow(self, change) -> None:
        """Move the rank of the feed-forward layers along, unless they have their own."""
        if not self._is_held and self.feed_forward.value == change["old"]:
            with self.held():
                self.feed_forward.value = change["new"]

    def _click(self, event) -> None:
        shown = self._shown
        if event.inaxes is not self._space or event.xdata is None or not shown:
            return
        designs = list(shown)
        here = self._space.transData.transform((event.xdata, event.ydata))
        points = self._space.transData.transform([_figures(shown[design]) for design in designs])
        distances = np.hypot(*(points - here).T)
        self.choose(designs[int(np.argmin(distances))])

    @property
    def _around(self) -> list[Design]:
        """The programs of the grid with this optimizer, this clock and this card."""
        same = {"optimizer": self.optimizer.value, "clock_mhz": self.clock.value, "card": self.card.value}
        return [replace(program, **same) for program in grid(self.encoders.value)]

    @property
    def _shown(self) -> dict[Design, Estimate]:
        """The designs in the figure that are there."""
        estimates = {}
        for design in self._around:
            with contextlib.suppress(BttlabError):
                if (made := self.programs.find(design)) is not None:
                    estimates[design] = made
        return estimates

    def _update(self) -> tuple[str, str]:
        design = Design(*(chosen_control.value for chosen_control in self._controls))
        self.design, self.estimate = design, None
        around = self._around
        slower = replace(design, clock_mhz=min(design.clock_mhz, CLOCK_MHZ))  # the overlay's clock, beside a faster one
        missing = self.programs.want([design, slower, *around])
        shown = self._shown
        working = f"<br>compiling and timing programs: {missing} to come" if missing else ""
        try:
            self.estimate = estimate = self.programs.find(design)
        except BttlabError as error:  # said at once, whatever else is to come
            self._draw_space(shown, None)
            self._draw_machine(None)
            too = f"{self.programs.refusals(around)} of the {len(around)} programs around it do not fit either"
            return f"<b>{design}</b> does not fit; {too}. {working}", str(error)
        self._draw_space(shown, estimate)
        self._draw_machine(estimate)
        self._is_pending = estimate is None
        if estimate is None:
            return f"<b>{design}</b>: compiled, or refused, within a minute …{working}", ""
        seconds = f"<b>{estimate.seconds_per_epoch:,.2f} s</b>"
        with contextlib.suppress(BttlabError):  # two programs, which need not fit both
            if slower != design and (beside := self.programs.find(slower)):
                seconds += f" (at {CLOCK_MHZ} MHz: {beside.seconds_per_epoch:,.2f} s)"
        results = (
            f"<b>{design}</b>: an epoch of {estimate.samples:,} samples takes {seconds} and {_energy(estimate)} "
            f"({_how(design.clock_mhz)}, {MODEL_VERSION}). {_room(estimate)}"
        )
        return results + working, ""

    def _draw_space(self, shown: Mapping[Design, Estimate], chosen: Estimate | None) -> None:
        axes = self._space
        axes.clear()
        of = "energy of an epoch (J" if self.card.value == NAMES[0] else "time of an epoch (s"
        style(axes, "Click on a program", "parameters (thousand)", f"{of}, modelled)")
        for colour, (flow, name) in zip(PALETTE, FLOW_TITLES.items(), strict=False):
            points = {design.rank: _figures(estimate) for design, estimate in shown.items() if design.flow == flow}
            if points:
                places = zip(*(points[rank] for rank in sorted(points)), strict=True)
                axes.plot(*places, color=colour, marker=MARKERS[flow], linewidth=1, label=name)
        cheapest = {design.rank: design for design in sorted(shown, key=lambda d: -_figures(shown[d])[1])}
        for design, made in shown.items():
            above = -15 if cheapest[design.rank] == design else 8
            where = {"xytext": (0, above), "textcoords": "offset points", "ha": "center", "fontsize": 8}
            axes.annotate(f"{design.rank}: {made.seconds_per_epoch:.1f} s", _figures(made), **where)
        if chosen is not None:
            ring = {"facecolors": "none", "edgecolors": "0.1", "linewidths": 2}
            axes.scatter(*_figures(chosen), s=170, **ring, label="chosen")
        axes.margins(0.16, 0.1)
        axes.set_ylim(bottom=0)
        if not shown and not chosen:  # numbers on axes without points say nothing
            axes.set(xticks=[], yticks=[])
            axes.text(0.5, 0.5, "no program to draw", transform=axes.transAxes, ha="center", color="0.35")
        else:
            axes.legend(fontsize=8, loc="lower right", framealpha=0.8, title="rank: time of an epoch", title_fontsize=8)

    def _draw_machine(self, chosen: Estimate | None) -> None:
        axes = self._machine
        axes.clear()
        style(axes, "The machine (modelled)", "%", "")
        if chosen is not None:
            banks = [bank for bank in chosen.memory.banks if "parameters" in bank.groups]
            taken = sum(bank.groups["parameters"] for bank in banks) / sum(bank.depth for bank in banks)
            bars = [(f"{unit} busy", chosen.work.shares[unit], PALETTE[2]) for unit in SHOWN_UNITS]
            bars.append(("the engines' multipliers", chosen.lane_utilisation, PALETTE[2]))
            bars.append(("parameter banks, taken by parameters", taken, PALETTE[0]))
            for row, (name, part, colour) in enumerate(bars):
                axes.barh(row, 100 * part, color=colour, height=0.5)
                axes.text(1, row - 0.31, f"{name}: {part:.0%}", fontsize=9, va="bottom")
        else:
            axes.set_xticks([])
        axes.set(yticks=[], ylim=(len(SHOWN_UNITS) + 1.6, -0.9), xlim=(0, 100))


def _figures(estimate: Estimate) -> tuple[float, float]:
    """Return the place of a program in the figure: its parameters, and its energy, or time if that is unknown."""
    cost = estimate.energy_per_epoch.value if estimate.has_power else estimate.seconds_per_epoch
    return estimate.model.parameters_count / 1e3, cost


def _how(clock_mhz: int) -> str:
    return "modelled" if clock_mhz <= CLOCK_MHZ else NOT_CLOSED


def _energy(estimate: Estimate) -> str:
    if not estimate.has_power:
        return "an unknown energy"
    energy = estimate.energy_per_epoch
    return f"<b>{energy.value:,.0f} J</b>, {energy.low:,.0f} to {energy.high:,.0f}"


def _room(estimate: Estimate) -> str:
    """Return a sentence on the room that the machine takes of the card."""
    used, name = estimate.resources, estimate.card.short_name
    if estimate.fits is None:
        most = max(RESOURCES, key=used.share_of_device)
        share = f"{used.share_of_device(most):.0%} of its {RESOURCES[most]}"
        return f"Whether the machine fits the {name} is unknown: it takes {share} before the shell's."
    most = max(RESOURCES, key=lambda resource: used.utilisation(resource) or 0)
    fits = "fits" if estimate.fits else "does not fit"
    return (
        f"The machine {fits} the {name}: {used.utilisation(most):.0%} of the {RESOURCES[most]} that the shell leaves."
    )
