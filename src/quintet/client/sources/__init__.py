"""Where a subscription's messages come from: pushed, polled by a group, fetched, a mailbox."""
