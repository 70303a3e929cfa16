"""The broker over gRPC, in the words of google.pubsub.v1."""
