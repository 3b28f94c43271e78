"""The programs on a terminal: reports, progress, arguments, help pages, errors."""
