"""An auction of many products: locks must keep a rule across rows while many processes trade."""
