"""The blocking twin: generated classes and the portal to the event loop."""
