"""GGUF files, and llama.cpp, which runs them."""
