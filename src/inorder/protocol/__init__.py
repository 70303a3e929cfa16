"""What goes over the wire beyond google.pubsub.v1: `inorder_v1.proto`, and the module that protoc makes of it.

`make protocol` makes it anew; a test compares.
"""

# The metadata by which two calls of google.pubsub.v1 know more.
PROTOCOL_KEY = "inorder-protocol"
PRODUCER_KEY = "inorder-producer-bin"
