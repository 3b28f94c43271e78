"""CTranslate2: writing its files, and running them."""
