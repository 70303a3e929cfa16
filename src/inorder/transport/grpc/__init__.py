"""A broker in another process, reached by gRPC: `PubSub("grpc://host:port")`.

channel     the connection, one for each target of a process
calls       a call and its answer, repeated where that is safe
own         a server that knows inorder.v1
plain       any other server of google.pubsub.v1, with its streams and answers in plain_stream, plain_answers,
            plain_turns and plain_rewinds
publishing  what is published: one request after the other, each stored once
answering   what is said of leases: acks, nacks, deadlines, returns
stream      one consumer's side of a subscription
pulling     messages that were asked for
found       what exists, or not, of what a call names
columns     bytes of the protocol, made and read
transport   all of it together

gRPC's own threads call back, and each stream has a thread that reads it. There is no loop of ours beneath: with
grpc.aio all loops of a process share one queue, so that each of our events would wake the loop of a program that
uses it as well, and a program that blocks its loop would block us.
"""
