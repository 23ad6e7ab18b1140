"""The common part of peers, which run under another interpreter and exchange lines with `peer.Peer`.

On standard output, JSON: first {"ready": facts} or {"error": reason}, then {"seconds": s} for every line "turn" on standard input,
which does one piece of the work; at the end of its input a worker leaves. Between turns it waits for the next line and for nothing else.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def serve(prepare: Callable[[], tuple[Callable[[], Any], dict[str, Any]]]) -> int:
    """Takes turns until the input ends. Returns the exit status.

    prepare: gives (one piece of the work, what is worth knowing of the peer); it imports what only that interpreter has
    """
    with os.fdopen(os.dup(1), "w", buffering=1) as lines:  # standard output is for the protocol alone
        os.dup2(2, 1)  # what libraries print goes to standard error
        try:
            turn, facts = prepare()
        except ImportError as error:
            print(json.dumps({"error": f"{sys.executable}: {error}"}), file=lines)
            return 1
        print(json.dumps({"ready": facts}), file=lines)
        for _ in sys.stdin:
            start = time.perf_counter()
            turn()
            print(json.dumps({"seconds": time.perf_counter() - start}), file=lines)
    return 0
