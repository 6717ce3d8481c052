"""The compiler: a graph and a checkpoint in, a flat plan with its memory out."""
