"""`python -m leash_trl`, which is also what `accelerate launch -m leash_trl train ...` runs."""

from leash_trl.cli.main import main


raise SystemExit(main())
