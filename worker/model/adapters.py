"""LoRA adapters on a loaded network: layers that are put in and taken out, beside weights that stay.

Everything here runs on the engine's thread.
"""

from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tuner.dora import DoRAEmbedding, DoRALinear
from mlx_lm.tuner.lora import LoRAEmbedding, LoRALinear, LoRASwitchLinear
from mlx_lm.tuner.utils import linear_to_lora_layers

from worker.model.description import read_json

CONFIGURATION: Final = "adapter_config.json"
WEIGHTS: Final = "adapters.safetensors"
_KINDS: Final = (LoRALinear, LoRASwitchLinear, LoRAEmbedding, DoRALinear, DoRAEmbedding)
_LEAVES: Final = frozenset({"lora_a", "lora_b", "m"})


class AdapterError(Exception):
    """Raised when an adapter can't be used with this model. The message is a sentence without paths."""


class Layers:
    """One adapter: its layers, each around the layer of the network that it adds to."""

    def __init__(self, layers: dict[str, Any]) -> None:
        self.layers = layers
        self.nbytes = sum(
            int(array.nbytes)
            for layer in layers.values()
            for name, array in tree_flatten(layer.parameters())
            if name.rsplit(".", 1)[-1] in _LEAVES
        )


class Adapters:
    """The adapters of one network, by identity; at most one is in place, "" is none."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._layers: dict[str, Layers] = {}
        self._in_place = ""

    def add(self, identity: str, directory: Path) -> int:
        """Load the adapter in `directory`; what is in place stays. Returns its bytes. Raises AdapterError."""
        if not hasattr(self._network, "layers"):
            raise AdapterError("this model takes no adapters: it is no decoder")
        if identity not in self._layers:
            before = self._in_place
            self.select("")
            try:
                self._layers[identity] = self._load(directory)
            finally:
                self.select(before)
        return self._layers[identity].nbytes

    def remove(self, identity: str) -> None:
        """Forget it; no row may need it any more."""
        if self._in_place == identity:
            self.select("")
        self._layers.pop(identity, None)

    def select(self, identity: str) -> None:
        """Put it in place of the one that is; no row may run with another. Raises KeyError."""
        if identity == self._in_place:
            return
        wanted = self._layers[identity].layers if identity else {}
        if self._in_place:
            self._put({name: _base(layer) for name, layer in self._layers[self._in_place].layers.items()})
        self._put(wanted)
        self._in_place = identity

    def _put(self, layers: dict[str, Any]) -> None:
        if layers:
            self._network.update_modules(tree_unflatten(list(layers.items())))

    def _load(self, directory: Path) -> Layers:
        configuration = read_json(directory / CONFIGURATION)
        if not configuration or not (directory / WEIGHTS).is_file():
            hint = ""
            if (directory / "adapter_model.safetensors").is_file():
                hint = " This one is in PEFT's format, which has to be converted first."
            raise AdapterError(f"There is no mlx-lm adapter: {CONFIGURATION} and {WEIGHTS} are needed.{hint}")
        kind = configuration.get("fine_tune_type", "lora")
        if kind not in ("lora", "dora"):
            raise AdapterError(f"An adapter of type {str(kind)[:40]!r} changes the base weights.")
        try:
            linear_to_lora_layers(
                self._network,
                configuration["num_layers"],
                configuration["lora_parameters"],
                use_dora=kind == "dora",
            )
            layers = self._found()
            self._fill(layers, directory / WEIGHTS)
        except AdapterError:
            raise
        # Whatever mlx-lm makes of a configuration that somebody else wrote.
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise AdapterError(f"The adapter does not fit this model: {reason}") from error
        finally:
            self._put({name: _base(layer) for name, layer in self._found().items()})
        return Layers(layers)

    def _found(self) -> dict[str, Any]:
        return {name: layer for name, layer in self._network.named_modules() if isinstance(layer, _KINDS)}

    def _fill(self, layers: dict[str, Any], path: Path) -> None:
        if not layers:
            raise AdapterError("The adapter's configuration names no layers of this model.")
        weights = mx.load(str(path))
        assert isinstance(weights, dict)
        places = {
            f"{name}.{leaf}": (layer, leaf)
            for name, layer in layers.items()
            for leaf in _LEAVES
            if leaf in layer
        }
        given = set(map(str, weights))
        for name in [name for name in layers if not any(f"{name}.{leaf}" in given for leaf in _LEAVES)]:
            # Not trained, so it would add nothing.
            del layers[name]
        unknown = sorted(given - set(places))
        missing = sorted(
            place
            for place, (layer, _) in places.items()
            if place not in given and any(layer is kept for kept in layers.values())
        )
        if unknown or missing:
            what = f"it has {unknown[0]}" if unknown else f"it lacks {missing[0]}"
            raise AdapterError(f"The adapter does not fit this model: {what}.")
        for name, array in weights.items():
            layer, leaf = places[str(name)]
            assert isinstance(array, mx.array)
            if array.shape != layer[leaf].shape:
                raise AdapterError(
                    f"The adapter does not fit this model: {name} is {array.shape}, not {layer[leaf].shape}."
                )
            layer[leaf] = array
        for layer in layers.values():
            # Dropout is for training.
            layer.eval()
        mx.eval([layer.parameters() for layer in layers.values()])


def _base(layer: Any) -> Any:
    return layer["embedding"] if "embedding" in layer else layer["linear"]
