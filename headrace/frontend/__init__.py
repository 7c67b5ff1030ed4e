"""Process A: text to tokens and back. Nothing here knows a tensor."""
