"""python -m bttlab is the command bttlab."""

import sys

from bttlab.cli import main

sys.exit(main())
