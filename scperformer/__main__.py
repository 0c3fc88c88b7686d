"""`python -m scperformer`: the same as the command `scperformer`."""

import sys

from scperformer.cli import main

sys.exit(main())
