"""The zoo's models: vocabularies, tensors drawn from seeds, and the GGUF files that hold them."""
