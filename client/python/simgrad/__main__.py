"""python -m simgrad: the command line."""

import sys

from simgrad.command_line import main

sys.exit(main())
