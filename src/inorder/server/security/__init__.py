"""Who may do what, and how much of it.

options     TLS, tokens and limits, as a server is told of them
tls         certificates
tokens      a file of tokens, each with its rights
rights      which right each call needs
guard       every call has a token with the right to it, as long as it runs
peers       how much one peer may ask for
"""
