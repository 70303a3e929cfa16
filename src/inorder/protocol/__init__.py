"""What goes over the wire beyond google.pubsub.v1: `inorder_v1.proto`, and the module that protoc makes of it.

`make protocol` makes it anew; a test compares.
"""
