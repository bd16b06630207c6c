"""What is measured: every module has run(bench), which gives the record of its measure."""
