"""A process that forwards from a folder to another broker, until it is killed or has done all: `FOLDER TARGET`."""

import sys

from inorder import PubSub
from inorder.consumers import Forwarder

if __name__ == "__main__":
    with PubSub(f"file:{sys.argv[1]}") as source, PubSub(sys.argv[2]) as target:
        with Forwarder(source.subscription("mover"), target.topic("orders"), batch=20) as forwarder:
            print("forwarding", flush=True)
            forwarder.drained().result()
        print("done", flush=True)
