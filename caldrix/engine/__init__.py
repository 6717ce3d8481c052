"""From a request to its tokens: queue, slots, steps, and the one thread that runs them.

Owns the path of a reply below text and above the compiled plan; has never heard of JSON, HTTP or
model names. An engine is an object: several may live in one process. Import from the modules:
engine, sequence, generate, load.
"""
