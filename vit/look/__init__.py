"""A loaded model and new images: what it predicts (`predict`), and its attention on them.

`subject` holds a model with images, `datasets` takes these from a data set or a folder, `panels`
makes the maps that `vit attention` draws.
"""
