"""The models that are measured here run on the backend as a worker sets it up."""

from worker.model.backend import prepare_backend

prepare_backend()
