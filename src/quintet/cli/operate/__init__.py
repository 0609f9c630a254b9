"""Commands for whoever runs a broker: how it is, what is busy, what is wrong with it or its machine."""
