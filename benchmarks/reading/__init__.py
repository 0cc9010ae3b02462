"""The ImageNet example's reading against `keras.utils.image_dataset_from_directory`, in images per second and core."""
