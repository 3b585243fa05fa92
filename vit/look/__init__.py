"""Apply a loaded model to new images: its predictions (`predict`), and its attention.

`subject` holds a model with images, `datasets` takes these from a data set or a folder, `panels`
makes the maps that `vit attention` draws.
"""
