"""BlipMQ: length-prefixed frames, QoS 0 and 1, poll or push, delivery tags. See README.md in this folder."""
