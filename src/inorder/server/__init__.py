"""Google's Pub/Sub protocol in front of a broker: one process, one loop, no thread per client.

`inorder serve` starts it; `Server` is the same for programs and tests. Needs the extra `inorder[server]`.

    names       projects/P/topics/T, and what the broker calls it
    resources   Topic and Subscription as Google describes them, and the options that the broker knows
    limits      what one request may hold
    wire        messages as bytes: split when published, joined when delivered, never made into objects
    desk        who gets what of a subscription: streams and pulls take turns
    answers     acks, nacks and deadlines by ack id
    publisher, subscriber, streaming    the calls
    schemas     definitions of messages, their revisions, and messages checked by them
    iam         policies, kept and returned
    documents   where both are kept
    extensions  inorder.v1, the calls beyond Google's
    expiry      subscriptions that nobody uses
    chores      what is done now and then, whatever went wrong the last time
    startup     what is created when the server starts
    security    who may call, and how much one may ask for
    gates       what every call passes: calls (counted), door (closed when it stops), and those of security
    health, reflection, metrics, scraping   what operators and their tools ask
    status      what went wrong, in gRPC's codes and Google's words
"""

from inorder.server.serve import Server

__all__ = ["Server"]
