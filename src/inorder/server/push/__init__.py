"""Push subscriptions: messages go to HTTP endpoints by themselves."""
