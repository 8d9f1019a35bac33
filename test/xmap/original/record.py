"""Writes results.json: what xmap of JAX 0.4.30 makes of original_programs.py.

uv venv --python 3.11 .venv-0.4.30
uv pip install --python .venv-0.4.30/bin/python jax==0.4.30 jaxlib==0.4.30 "numpy<2"
.venv-0.4.30/bin/python test/xmap/original/record.py
"""

import importlib
import json
import os
import warnings
from pathlib import Path
from types import SimpleNamespace

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from manual_programs import MANUAL
from original_programs import ERRORS, PROGRAMS, Api

HERE = Path(__file__).parent


def lower_to_manual_shardings(setting: bool) -> None:
    for flag in ("experimental_xmap_spmd_lowering", "experimental_xmap_spmd_lowering_manual"):
        jax.config.update(flag, setting)


def main() -> None:
    warnings.simplefilter("ignore")
    from jax.experimental import maps
    from jax.experimental.pjit import pjit

    def mesh(shape, names):
        return jax.sharding.Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), names)

    # Not public even there.
    functions = {"pgather": importlib.import_module("jax._src.lax.parallel").pgather}
    lax = SimpleNamespace(**{**vars(jax.lax), **functions})

    def jit(fun, mesh, in_spec, out_spec):
        return pjit(fun, in_shardings=in_spec, out_shardings=out_spec)

    def constraint(x, mesh, spec):
        return jax.lax.with_sharding_constraint(x, spec)

    api = Api(maps.xmap, lax, maps.SerialLoop, maps.serial_loop, mesh, jit, constraint)
    results, errors = {}, {}
    for name, program in {**PROGRAMS, **MANUAL}.items():
        lower_to_manual_shardings(name in MANUAL)
        try:
            values = [np.asarray(x) for x in jax.tree.leaves(program(api))]
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")
            results[name] = None
        else:
            results[name] = [{"shape": x.shape, "values": x.ravel().tolist()} for x in values]
    lower_to_manual_shardings(False)
    for name, program in ERRORS.items():
        try:
            program(api)
        except Exception as error:
            kinds = [kind.__name__ for kind in (ValueError, TypeError) if isinstance(error, kind)]
            kind = (kinds or [type(error).__name__])[0]
            text = str(error).partition("\n")[0].replace(f"{HERE}/", "")
            errors[name] = {"type": kind, "text": text}
        else:
            errors[name] = None
    table = {"jax": jax.__version__, "results": results, "errors": errors}
    lines = json.dumps(table, indent=1)
    (HERE / "results.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
