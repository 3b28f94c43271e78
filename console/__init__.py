"""What the programs share on a terminal: reports, progress, arguments, help pages, errors."""
