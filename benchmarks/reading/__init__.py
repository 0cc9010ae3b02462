"""The ImageNet example's reading beside `keras.utils.image_dataset_from_directory`, in images per second and core."""
