"""Text to token ids and token bytes, from the tokenizer that a model's files describe.

The public name is `Tokenizer` (tokenizer.py); `load_tokenizer` (load.py) makes one from a folder or a GGUF file.
"""
