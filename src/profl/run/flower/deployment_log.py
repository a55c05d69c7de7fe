"""What a node has deployed, on its disk: an order that is sent again deploys nothing twice.

Each deployment is a file, written before the client's ``deploy`` is called (the model that is out) and again once its
data are there. Whatever dies in between, the node or the server: data that came in are used again, and a deployment
that is open is asked for (``collect``) before it is made again, with the same model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from profl.run.live.batches import Answer
from profl.storage import archive
from profl.storage.archive import DamagedFile
from profl.storage.atomic import atomic, make_folder
from profl.typing import Batch, Theta

_NAME = re.compile(r"deployment-(\d{8})\.npz")


class DeploymentLog:
    """The deployments of one client in one run.

    Args:
      folder: the client's own; None keeps nothing, so an order that is sent again deploys again.
      token: of the run; files of another one do not count.
      like: the structure of a batch.
    """

    def __init__(self, folder: Path | None, token: str, like: Batch) -> None:
        self.folder, self.token, self.like = folder, token, like

    def once(
        self, step: int, theta: Theta, deploy: Callable[[], Answer], collect: Callable[[], Answer | None]
    ) -> Answer:
        """What deployment number ``step``, of ``theta``, brought in: from disk, collected, or deployed now."""
        if self.folder is None:
            return deploy()
        known, answer = self._load(step, theta)
        if answer is not None:
            return answer
        if known:
            answer = collect()
        else:
            self._save(step, theta, None)
        if answer is None:
            answer = deploy()
        self._save(step, theta, answer)
        return answer

    def forget_before(self, step: int) -> None:
        """Remove the files of deployments before number ``step``, which no order can ask for again."""
        for path in self.folder.glob("deployment-*.npz") if self.folder is not None else ():
            if (match := _NAME.fullmatch(path.name)) and int(match[1]) < step:
                path.unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        assert self.folder is not None
        return self.folder / f"deployment-{step:08d}.npz"

    def _save(self, step: int, theta: Theta, answer: Answer | None) -> None:
        arrays = archive.named_arrays("theta", theta)
        if answer is not None:
            arrays |= archive.named_arrays("batch", answer.batch) | archive.named_arrays("deployed", answer.deployed)
        make_folder(self._path(step).parent, private=True)
        with atomic(self._path(step), private=True) as temporary:
            missing = None if answer is None else answer.missing
            archive.write(temporary, arrays, {"token": self.token, "missing": missing})

    def _load(self, step: int, theta: Theta) -> tuple[bool, Answer | None]:
        """(whether this very deployment was begun, what it brought in if that is known)."""
        try:
            arrays, meta = archive.read(self._path(step))
            if meta["token"] != self.token or not _equal(_tree("theta", arrays, theta), theta):
                return False, None
            if meta["missing"] is None:
                return True, None
            deployed = jax.tree.map(jax.device_put, _tree("deployed", arrays, theta))
            return True, Answer(_tree("batch", arrays, self.like), deployed, int(meta["missing"]))
        except (DamagedFile, KeyError, TypeError, ValueError):
            return False, None


def _tree(name: str, arrays: dict[str, np.ndarray], like: Any) -> Any:
    """One of the trees in a file."""
    own = {place: array for place, array in arrays.items() if place.startswith(name)}
    return archive.restore_tree(name, own, like, same_shape=False)


def _equal(one: Theta, other: Theta) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, np.asarray(b)) for a, b in pairs)
