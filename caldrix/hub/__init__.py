"""Where models come from: what a model argument means, and how its files get onto this machine.

Knows names, caches and networks; knows nothing of what is inside a model file. Only the command
line imports this package. `resolve.parse_model` refuses what can be refused without a network;
`fetch.fetch` then returns a directory or a .gguf file.
"""
