"""Text in and out of a model: tokenizers, chat templates, incremental decoding, stop strings.

Works on plain data (paths, dictionaries, ids); must not know formats, the engine or who asks.
"""
