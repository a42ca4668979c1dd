"""The page: one file that shows what was learnt from a table. Facts come in, a page goes out."""
