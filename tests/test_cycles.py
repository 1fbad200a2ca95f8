"""The constants of the source, as Python reads them."""

import pytest

from bttlab.u50 import OverlayError
from bttlab.u50.hardware import HardwareConfig, read_constants


def test_constants_stand_once(tmp_path):
    header = tmp_path / "config.h"
    header.write_text("constexpr int A = 3, B = 2 * (A + 1);\nconstexpr int C = B / 3;\n")
    assert read_constants(header) == {"A": 3, "B": 8, "C": 2}
    header.write_text("constexpr int A = other(3);\n")
    with pytest.raises(OverlayError, match="no constant that the model of the hardware can read"):
        read_constants(header)


def test_a_hardware_that_cannot_be():
    for wrong, message in (
        ({"lanes": 0}, "lanes of the hardware is 0"),
        ({"engines": 3}, "engines of the hardware is 3: the source is written for 2"),
        ({"function_lanes": 3}, "function_lanes of the hardware is 3: it must divide the 16 lanes"),
        ({"merged_layers": 11}, "merged_layers of the hardware is 11: at least 12, those of two encoders"),
        ({"engine_rows": 17}, "engine_rows of the hardware is 17: at most 16"),
    ):
        with pytest.raises(OverlayError, match=message):
            HardwareConfig(**wrong)
    assert HardwareConfig(clock_mhz=100).clock_mhz == 100
