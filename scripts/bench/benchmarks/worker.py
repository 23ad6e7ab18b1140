"""The worker's side of the protocol between `peer.Peer` and a peer, which runs under another Python interpreter.

The worker prints JSON lines to standard output: first {"ready": facts} or {"error": reason}, then {"seconds": s} after
each turn, which it takes for every line "turn" on standard input. It exits at the end of its input. Between turns it
only waits for input.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def serve(prepare: Callable[[], tuple[Callable[[], Any], dict[str, Any]]]) -> int:
    """Takes turns until the input ends. Returns the exit status.

    prepare: returns (a turn, facts about the peer); it imports the packages that only this interpreter has
    """
    with os.fdopen(os.dup(1), "w", buffering=1) as lines:  # standard output is reserved for the protocol
        os.dup2(2, 1)  # libraries print to standard error
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
