"""Use a shared card once, for its keeper: ``python -m bttlab.card.probe 0000:3b:00.1``.

Exit code 0: the card answers. NO_ANSWER: its kernel does not end. Another code: it could not be asked.
"""

import sys

import pynq

from bttlab.card.card_lock import card_name
from bttlab.card.emulation import EmulatedU50
from bttlab.card.keeper import NO_ANSWER
from bttlab.card.kernel import TRAINER_KERNEL
from bttlab.card.overlay import load_overlay
from bttlab.card.waiting import CardHungError


def main(address: str) -> int:
    cards = [card for card in pynq.Device.devices if not isinstance(card, EmulatedU50) and card_name(card) == address]
    try:
        getattr(load_overlay("trainer", cards[0]), TRAINER_KERNEL.instance)  # the driver asks for the machine's version
    except CardHungError:
        return NO_ANSWER
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
