"""What every part of the client stands on: errors, URLs, messages, the contract of a connection, subscriptions."""
