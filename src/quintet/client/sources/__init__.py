"""Holds the sources of subscriptions: pushed, fetched by a group, read by offset, a mailbox."""
