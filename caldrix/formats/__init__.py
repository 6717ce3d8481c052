"""Model files opened as mapped tensors: safetensors directories, GGUF files, JSON configs.

Owns every byte layout on disk and the checks a hostile file must pass. Must not know what a
tensor is for: names, shapes and dtypes leave this package as they were found.
"""
