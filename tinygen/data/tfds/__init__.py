"""Images and text from TensorFlow Datasets."""
