"""config.h lists the banks that programs ask each port for: none is missing, and none is there for nobody."""

import pytest

from program_ports import listed, used_ports


@pytest.mark.long
def test_ports_reach_what_programs_ask_for_and_no_more():
    assert {name: sorted(banks) for name, banks in used_ports().items()} == {
        name: sorted(banks) for name, banks in listed().items()
    }
