"""`python -m breakglass.cli` is `breakglass`."""

from breakglass.cli.main import main

main()
