"""A process that forwards from one folder to another, until it is killed or has done all: `FOLDER`."""

import sys
from pathlib import Path

from inorder import PubSub
from inorder.consumers import Forwarder

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with PubSub(folder / "source") as source, PubSub(folder / "target") as target:
        with Forwarder(source.subscription("mover"), target.topic("orders"), batch=20) as forwarder:
            print("forwarding", flush=True)
            forwarder.drained().result()
        print("done", flush=True)
