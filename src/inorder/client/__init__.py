"""What users import: PubSub, Topic, Subscription. One API, two ways to wait."""
