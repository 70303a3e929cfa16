"""The calls of Google's clients once more, in JSON over HTTP/1.1: for curl, and for clients that do not speak gRPC."""
