"""The measures: run(bench) of each module returns the record of its measure."""
