"""Comparing design choices under one budget: a plan, its runs, their statistics and the report."""
