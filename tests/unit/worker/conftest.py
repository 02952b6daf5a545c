"""The worker's tests run on the backend as the worker sets it up."""

from worker.model.backend import prepare_backend

prepare_backend()
