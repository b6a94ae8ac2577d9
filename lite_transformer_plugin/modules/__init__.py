"""Layers of the Lite Transformer; they know nothing of fairseq's registries."""
