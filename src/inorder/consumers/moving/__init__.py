"""A topic moves to another broker: messages by a forwarder, publishers by a switch, and a way to compare both sides."""
