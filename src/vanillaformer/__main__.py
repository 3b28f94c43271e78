"""`python -m vanillaformer`, the same as the command `vanillaformer`."""

from vanillaformer_cli import main

if __name__ == "__main__":
    main()
