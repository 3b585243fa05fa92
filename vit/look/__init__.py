"""A loaded model and new images: what it makes of them (`predict`), and what it is shown for a picture (`shown`, `panels`)."""
