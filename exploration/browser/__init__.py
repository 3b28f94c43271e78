"""A page in the browser that asks a model and shows what happens inside; the same page as a Space of the Hub."""
