"""inorder.v1: what this server offers beyond google.pubsub.v1.

resources   topics and subscriptions with all their options
keys        what a subscription waits for, and what can be done about it
delivery    messages as columns, and answers that are confirmed, on streams and by calls
reading     topics by positions
writing     publishing that may be repeated
folders     what these two need to be there
service     the calls of all, by name
"""
