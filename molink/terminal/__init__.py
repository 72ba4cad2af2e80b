"""What commands show the person in front of them: lines, bars, tables, errors in a sentence."""
