"""Terminal output of commands for people: lines, bars, tables, errors in a sentence."""
