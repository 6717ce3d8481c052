"""Pictures from outside: what they are, whether they may be taken. Knows nothing of models or
prompts.
"""
