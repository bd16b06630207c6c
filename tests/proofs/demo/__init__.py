"""The demo's races, and the pages that show their figures."""
