"""Holds what every part of the client uses: errors, URLs, messages, the contract of a connection, subscriptions."""
