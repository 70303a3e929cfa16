"""The ordering patterns, as pure steps: what to do with an event that came when it came."""
