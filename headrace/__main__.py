"""`python -m headrace`: the command line."""

import sys

from headrace.cli import main

sys.exit(main())
