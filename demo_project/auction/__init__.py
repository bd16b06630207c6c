"""An auction of many products: a rule across rows, kept under fire by locks, or not."""
