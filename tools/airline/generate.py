"""Generate the airline corpus: the same bytes for the same seed on every machine."""

from collections import Counter

from bttlab.data import Split
from bttlab.data.store import files_of

from . import lexicon, phrases, requests
from .grammar import Dice, Grammar, Tagged
from .labels import INTENT_LABELS, MANY_WORDS, SLOT_LABELS

SEED = 2501
SPLITS = {"train": 4478, "dev": 500, "test": 893}
LONGEST = 31
# In dev and test this share of the lexicon draws, in percent, goes to entries that training never shows.
RARE_PERCENT = 5
# What one utterance may name more than once; a second day, time or price would contradict the first.
MAY_RECUR = ("fromloc.", "toloc.", "stoploc.", "city_name", "airport_", "airline_")


def airline_grammar() -> Grammar:
    """The whole grammar; ``utterance`` with an intent's rule as its argument is where an utterance starts."""
    return Grammar.from_text(
        *(phrases.PLACES, phrases.TIMES, phrases.WISHES),
        *(requests.FRAME, requests.FLIGHT, requests.FARES, requests.SERVICES, requests.FLEET),
    )


class Draws:
    """The lexicon draws of one utterance: no city twice, a state that is its city's, an end after its start."""

    def __init__(self, dice: Dice, rare: bool):
        self._dice = dice
        self._rare = rare
        self._used: set[str] = set()
        self._place: dict[str, tuple] = {}
        self._home_city = ""
        self._start_hour = 0

    def __call__(self, kind: str, label: str) -> str:
        """The words of one lexicon terminal; a single word where the label has no I- form."""
        for _ in range(1000):
            words = getattr(self, kind)(label)
            if label in MANY_WORDS or " " not in words:
                return words
        raise ValueError(f"lexicon {kind!r} has no single word for label {label!r}")

    def _entry(self, common: list, rare: list = ()):
        if self._rare and rare and self._dice.chance(RARE_PERCENT):
            return self._dice.pick(rare)
        return common[self._dice.skewed(len(common))]

    def _fresh_city(self, label: str, coded: bool = False) -> str:
        while True:
            place = self._entry(lexicon.CITIES, lexicon.RARE_CITIES)
            if place[0] not in self._used and (place[2] or not coded):
                break
        self._used.add(place[0])
        self._place[self._role(label)] = place
        return place[0]

    def _role(self, label: str) -> str:
        return label.partition(".")[0] if "." in label else ""

    def city(self, label: str) -> str:
        return self._fresh_city(label)

    def coded_city(self, label: str) -> str:
        return self._fresh_city(label, coded=True)

    def city_airport(self, label: str) -> str:
        self._home_city = self._fresh_city(label)
        return f"{self._home_city} airport"

    def home_city(self, label: str) -> str:
        """The city of the airport that the utterance has named."""
        return self._home_city

    def state(self, label: str) -> str:
        return self._place[self._role(label)][1]

    def state_code(self, label: str) -> str:
        return self._place[self._role(label)][2]

    def any_state(self, label: str) -> str:
        return self._entry(lexicon.CITIES, lexicon.RARE_CITIES)[1]

    def _fresh_airport(self) -> tuple[str, str, str]:
        while True:
            entry = self._entry(lexicon.AIRPORTS, lexicon.RARE_AIRPORTS)
            if entry[2] not in self._used:
                self._used.add(entry[2])
                self._home_city = entry[2]
                return entry

    def airport(self, label: str) -> str:
        return self._fresh_airport()[0]

    def named_airport(self, label: str) -> str:
        return f"{self._fresh_airport()[0]} airport"

    def airport_code(self, label: str) -> str:
        return self._fresh_airport()[1]

    def airline(self, label: str) -> str:
        return self._entry(lexicon.AIRLINES, lexicon.RARE_AIRLINES)[0]

    def airline_code(self, label: str) -> str:
        return self._entry(lexicon.AIRLINES, lexicon.RARE_AIRLINES)[1]

    def aircraft(self, label: str) -> str:
        return self._entry(lexicon.AIRCRAFT, lexicon.RARE_AIRCRAFT)

    def number(self, label: str) -> str:
        if self._rare and self._dice.chance(RARE_PERCENT):
            return str(1501 + self._dice.below(2000))
        return self._entry(lexicon.FLIGHT_NUMBERS)

    def amount(self, label: str) -> str:
        return f"{self._entry(lexicon.AMOUNTS)} dollars"

    def time(self, label: str) -> str:
        while True:
            words = self._entry(lexicon.TIMES)
            hour = words.split()[0]
            hour = int(hour if len(hour) < 3 else hour[:-2]) if hour.isdigit() else 12
            if label.endswith("start_time"):
                self._start_hour = hour
            if not label.endswith("end_time") or hour > self._start_hour or self._start_hour >= 11:
                return words

    def clock(self, label: str) -> str:
        """A time without am, pm or o'clock."""
        return self._entry(lexicon.CLOCK)

    def day(self, label: str) -> str:
        return self._entry(lexicon.DAYS)

    def month(self, label: str) -> str:
        return self._entry(lexicon.MONTHS)

    def ordinal(self, label: str) -> str:
        return self._dice.pick(lexicon.ORDINALS)

    def fare_code(self, label: str) -> str:
        return self._dice.pick(lexicon.FARE_CODES)

    def meal_code(self, label: str) -> str:
        return self._dice.pick(lexicon.MEAL_CODES)

    def restriction(self, label: str) -> str:
        return self._dice.pick(lexicon.RESTRICTIONS)

    def days_code(self, label: str) -> str:
        return self._dice.pick(lexicon.DAYS_CODES)


def utterances(split: str, seed: int = SEED) -> list[tuple[str, Tagged]]:
    """The (intent, [(word, tag), ...]) pairs of one split."""
    grammar = airline_grammar()
    dice = Dice(seed, list(SPLITS).index(split))
    intents = [(share, (intent, rule)) for intent, (rule, share) in requests.INTENTS.items()]
    pairs = []
    while len(pairs) < SPLITS[split]:
        intent, rule = dice.weighted(intents)
        tagged: Tagged = []
        while not _sensible(tagged):
            tagged = grammar.expand("utterance", dice, Draws(dice, rare=split != "train"), rule)
        pairs.append((intent, _with_articles(tagged)))
    return pairs


def _with_articles(tagged: Tagged) -> Tagged:
    """Write "an" for "a" where the next word begins with a vowel sound."""
    following = [word for word, _ in tagged[1:]] + [""]
    vowel = [word.startswith(("a", "e", "i", "o", "8")) and word != "one" for word in following]
    return [("an" if word == "a" and before else word, tag) for (word, tag), before in zip(tagged, vowel, strict=True)]


def _sensible(tagged: Tagged) -> bool:
    """Return True if an utterance is short enough, repeats nothing and asks for no return on a one-way trip."""
    chunks = Counter(tag[2:].replace("date.today_relative", "date.day_name") for _, tag in tagged if tag[0] == "B")
    twice = {chunk for chunk, count in chunks.items() if count > 1 and not chunk.startswith(MAY_RECUR)}
    one_way = ("way", "I-round_trip") in tagged
    back = any(chunk.startswith("return_") for chunk in chunks)
    return 0 < len(tagged) <= LONGEST and (not twice or "or" in chunks) and not (one_way and back)


def corpus_files(seed: int = SEED) -> dict[str, bytes]:
    """The files of the corpus in the common layout, by path relative to its folder."""
    splits = {}
    for name in SPLITS:
        intents, tagged = zip(*utterances(name, seed), strict=True)
        words, tags = ([[pair[k] for pair in pairs] for pairs in tagged] for k in (0, 1))
        splits[name] = Split(words, tags, list(intents))
    return files_of(INTENT_LABELS, SLOT_LABELS, splits)
