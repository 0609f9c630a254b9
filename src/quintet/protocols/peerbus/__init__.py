"""peerbus: signed JSON envelopes between named peers, over WebSocket or one object a line. See README.md in this folder."""
