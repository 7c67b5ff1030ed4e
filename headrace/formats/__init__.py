"""Files on disk, read without numpy: GGUF, safetensors, and the JSON files of a Hugging Face folder."""
