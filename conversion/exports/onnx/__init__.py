"""ONNX graphs, and ONNX Runtime, which runs them."""
