"""Energy of the processor packages, from the counters that Linux shows under /sys/class/powercap.

zeus 0.16 is not used here: it takes the zone psys, which contains the package, for another package, and it adds a
wrapped counter's range up to a second late, so that a window in between is wrong by 262 kJ.
"""

import re
import threading
import time
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


def package_zones(folder: Path = POWERCAP) -> dict[str, Path]:
    """Return the folders of the processor packages' counters by zone name, such as package-0.

    Subzones (core, uncore, dram) and psys are left out: they are parts of a package, or contain it.
    """
    zones = {}
    for zone in sorted(folder.glob("intel-rapl:*"), key=lambda zone: (len(zone.name), zone.name)):
        name = (zone / "name").read_text().strip() if re.fullmatch(r"intel-rapl:\d+", zone.name) else ""
        if name.startswith("package-"):
            zones[name] = zone
    return zones


class RaplMeter:
    """The energy counters of all processor packages; several threads may read it.

    Raises OSError if there is no counter, or it cannot be read. `begin`, `end` and `watts` raise it when a counter
    vanishes.
    """

    def __init__(self, folder: Path = POWERCAP):
        zones = package_zones(folder)
        if not zones:
            raise FileNotFoundError
        self.how = f"RAPL: {', '.join(zones)}, without DRAM, with everything that runs on them"
        self.counters = [zone / "energy_uj" for zone in zones.values()]
        self._ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in zones.values()]
        self._lock = threading.Lock()  # a second reader between the two reads of a wrap would count it twice
        self._last = [int(counter.read_text()) for counter in self.counters]
        self._microjoules = 0  # since the meter was made
        self._looked = (time.perf_counter(), 0.0)  # when watts() was last called, and the joules then

    def begin(self) -> None:
        self._start = self.joules()

    def end(self) -> float:
        return self.joules() - self._start

    def watts(self) -> float:
        """Return the mean power since the last call."""
        then, before = self._looked
        self._looked = now, joules = time.perf_counter(), self.joules()
        return (joules - before) / (now - then)

    def joules(self) -> float:
        """Return the joules since the meter was made. Call it at least once a minute: counters wrap."""
        with self._lock:
            values = [int(counter.read_text()) for counter in self.counters]
            for value, last, limit in zip(values, self._last, self._ranges, strict=True):
                self._microjoules += value - last if value >= last else value - last + limit
            self._last = values
            return self._microjoules / 1e6
