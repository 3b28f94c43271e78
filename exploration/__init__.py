"""Inside a trained model: recordings, figures of them, and the page that shows the figures."""
