"""From the log to a subscriber: positions, credit, what is in flight, acknowledgement and redelivery. Knows no protocol."""
