"""What a trained model does inside: recordings, figures of them, and the page that shows the figures."""
