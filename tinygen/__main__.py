"""`python -m tinygen`, for a launcher that starts Python: the command `tinygen`."""

import sys

from tinygen.cli.main import main

sys.exit(main())
