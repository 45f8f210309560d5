"""The command ``python -m tilewright.prebuilt``."""

import sys

from .build import main

sys.exit(main())
