"""The weights server: nodes fetch the files of their layers here."""
