"""Plans the training of a Keras model: measures its layers here, and finds the mesh on which a step is fastest.

`probes` measures, `strategies.planning` computes the steps of all meshes, and `plan` is the public function.
"""

from keras_ext.planning.plan import TrainingPlan, training_plan

__all__ = ["TrainingPlan", "training_plan"]
