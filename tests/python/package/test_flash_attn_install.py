# SPDX-License-Identifier: Apache-2.0
"""tegula.install_as_flash_attn() in fresh processes: what can be imported and asked for afterwards,
what comes too late, and what transformers makes of it."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


def run(code, *first_on_path, fails_with=None):
    """Runs code in a fresh interpreter that sees what this one sees -> its stdout, or its error."""
    path = os.pathsep.join([*map(str, first_on_path), *(p for p in sys.path if p)])
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if fails_with is None:
        assert process.returncode == 0, process.stderr
        return process.stdout
    assert process.returncode != 0, process.stdout
    assert fails_with in process.stderr.strip().splitlines()[-1], process.stderr
    return process.stderr


@pytest.fixture(scope="module")
def other_flash_attn(tmp_path_factory):
    """A folder with another package of that name, 2.1.0, installed."""
    root = tmp_path_factory.mktemp("site")
    (root / "flash_attn").mkdir()
    (root / "flash_attn" / "__init__.py").write_text("__version__ = '2.1.0'\n")
    info = root / "flash_attn-2.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.1.0\n")
    (info / "top_level.txt").write_text("flash_attn\n")
    return root


def test_imports_specs_and_distributions():
    run(
        """
        import importlib, importlib.util, importlib.metadata as metadata, pickle, sys
        import tegula
        assert importlib.util.find_spec("flash_attn") is None, "needs a machine without flash-attn"
        tegula.install_as_flash_attn()
        tegula.install_as_flash_attn()
        assert sum(type(f).__module__.startswith("tegula") for f in sys.meta_path) == 1
        names = '''flash_attn flash_attn.bert_padding flash_attn.cute flash_attn.cute.interface
            flash_attn.flash_attn_interface flash_attn.layers.rotary flash_attn.ops.triton.rotary
            flash_attn_interface flash_attn_3.flash_attn_interface'''.split()
        for name in names:  # found before and after the import
            assert importlib.util.find_spec(name).name == name
            module = importlib.import_module(name)
            assert importlib.util.find_spec(name) is module.__spec__ and module.__name__ == name
        assert importlib.util.find_spec("flash_attn.models") is None
        for absent in ("flash_attn.models", "flash_attn_2_cuda"):
            try:
                importlib.import_module(absent)
            except ImportError:
                continue
            raise AssertionError(absent)

        import flash_attn, flash_attn_interface, tegula.flash_attn
        from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
        from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
        from flash_attn.cute import flash_attn_func as fa4
        from flash_attn.flash_attn_interface import _wrapped_flash_attn_forward
        from flash_attn_3.flash_attn_interface import flash_attn_func as also_fa3
        assert flash_attn_func is tegula.flash_attn.flash_attn_func is not fa4
        assert also_fa3 is flash_attn_interface.flash_attn_func is not flash_attn_func
        assert flash_attn.flash_attn_interface.flash_attn_func is flash_attn_func
        assert pickle.loads(pickle.dumps(flash_attn_func)) is flash_attn_func
        assert tegula.flash_attn.__spec__.name == "tegula.flash_attn"
        assert flash_attn.__file__ == tegula.flash_attn.__file__

        assert flash_attn.__version__ == metadata.version("flash-attn") == "2.8.3"
        assert metadata.version("flash_attn") == "2.8.3"
        assert flash_attn_interface.__version__ == metadata.version("flash-attn-3") == "3.0.0"
        assert importlib.import_module("flash_attn.cute").__version__ == "4.0.0b36"
        assert metadata.version("flash_attn_4") == "4.0.0b36"
        assert "tegula" in metadata.metadata("flash-attn")["Summary"]
        known = metadata.packages_distributions()
        assert known["flash_attn"] == ["flash-attn", "flash-attn-4"]
        assert known["flash_attn_interface"] == ["flash-attn-3"]
        assert "torch" in known  # the others are still there
        assert not list(metadata.distributions(path=["/nonexistent"]))

        from tegula.stand_in import uninstall_as_flash_attn
        uninstall_as_flash_attn()
        uninstall_as_flash_attn()
        assert not any(n.split(".")[0].startswith("flash_attn") for n in sys.modules)
        assert importlib.util.find_spec("flash_attn") is None
        try:
            metadata.version("flash-attn")
            raise AssertionError("still there")
        except metadata.PackageNotFoundError:
            pass
        tegula.install_as_flash_attn()
        import flash_attn
        assert flash_attn.flash_attn_func is tegula.flash_attn.flash_attn_func
        """
    )


def test_after_another_flash_attn_is_an_error(other_flash_attn):
    error = run(
        "import flash_attn, tegula; tegula.install_as_flash_attn()",
        other_flash_attn,
        fails_with="RuntimeError: flash_attn has been imported from",
    )
    assert str(other_flash_attn) in error and "first of all" in error


def test_an_installed_flash_attn_is_hidden(other_flash_attn):
    run(
        """
        import importlib.metadata as metadata, tegula
        from importlib.util import find_spec
        assert metadata.version("flash-attn") == "2.1.0"
        theirs = find_spec("flash_attn").origin
        tegula.install_as_flash_attn()
        assert metadata.version("flash-attn") == "2.8.3"
        assert find_spec("flash_attn").origin == tegula.stand_in.__file__ != theirs
        tegula.stand_in.uninstall_as_flash_attn()
        assert metadata.version("flash-attn") == "2.1.0"
        assert find_spec("flash_attn").origin == theirs
        """,
        other_flash_attn,
    )


@needs_transformers
def test_after_a_question_of_transformers_is_an_error():
    run(
        """
        import transformers, tegula
        from tegula.stand_in import uninstall_as_flash_attn
        from transformers.utils import import_utils
        tegula.install_as_flash_attn()  # importing transformers asks nothing yet
        uninstall_as_flash_attn()
        for name, arguments in {
            "is_flash_attn_2_available": (), "is_flash_attn_3_available": (),
            "is_flash_attn_4_available": (), "is_flash_attn_greater_or_equal": ("2.3.3",),
            "_package_distribution_mapping": (),
        }.items():
            getattr(import_utils, name)(*arguments)
            try:
                tegula.install_as_flash_attn()
            except RuntimeError as error:
                assert f"has asked for flash_attn and keeps the answer ({name})" in str(error)
                assert "first of all" in str(error)
            else:
                raise AssertionError(name)
            getattr(import_utils, name).cache_clear()
            import_utils._package_distribution_mapping.cache_clear()
        tegula.install_as_flash_attn()
        """
    )


@needs_transformers
def test_transformers_on_this_machine(device):
    """What transformers finds, and its attention through each version beside its own eager formula.

    transformers uses the packages on a GPU only; here, without one, it is told that there is one,
    and the tensors stay on the CPU."""
    run(
        f"""
        import tegula
        tegula.install_as_flash_attn()
        import torch
        from transformers.utils import import_utils
        if not torch.cuda.is_available():
            assert not import_utils.is_flash_attn_2_available()
            assert not import_utils.is_flash_attn_3_available()
            assert not import_utils.is_flash_attn_4_available()
            for f in (2, 3, 4):
                getattr(import_utils, f"is_flash_attn_{{f}}_available").cache_clear()
            import_utils.is_torch_cuda_available = lambda: True
        assert import_utils.is_flash_attn_2_available() is True
        assert import_utils.is_flash_attn_3_available() is True
        assert import_utils.is_flash_attn_4_available() is True
        assert import_utils.is_flash_attn_greater_or_equal("2.3.3")
        assert import_utils.is_flash_attn_greater_or_equal("2.8.0")
        assert not import_utils.is_flash_attn_greater_or_equal("2.9.0")

        import tegula.flash_attn
        from transformers import modeling_flash_attention_utils as utils
        torch.manual_seed(0)
        device = "{device}"
        dtype = torch.float16 if "cuda" in device else torch.float32
        q, k, v = (torch.randn(2, 6, h, 32).to(device, dtype) for h in (4, 2, 2))
        mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6], device=device)
        sink = torch.randn(4, device=device, dtype=torch.bfloat16)

        def eager(padded, window, softcap, sink):
            qt, kt, vt = (t.double().transpose(1, 2) for t in (q, k, v))
            kt, vt = kt.repeat_interleave(2, 1), vt.repeat_interleave(2, 1)
            s = qt @ kt.transpose(-1, -2) * 0.2
            if softcap is not None:
                s = softcap * torch.tanh(s / softcap)
            i, j = torch.arange(6, device=device)[:, None], torch.arange(6, device=device)
            seen = (j <= i) & (j > i - window)
            seen = seen & mask[:, None, None].bool() if padded else seen.expand(2, 1, 6, 6)
            s = s.masked_fill(~seen, -torch.inf)
            if sink is not None:
                s = torch.cat([s, sink.double()[:, None, None].expand(2, 4, 6, 1)], -1)
            p = s.softmax(-1).nan_to_num()[..., :6]
            return (p @ vt).transpose(1, 2)

        chosen = {{2: tegula.flash_attn, 3: __import__("tegula.flash_attn.flash_attn_3",
            fromlist="x"), 4: __import__("tegula.flash_attn.cute", fromlist="x")}}
        for version, module in chosen.items():
            for padded in (False, True):
                for window, softcap in ((6, None), (3, None), (6, 0.9)):
                    for extra in (None, sink) if version > 2 else (None,):
                        o = utils._flash_attention_forward(
                            q, k, v, mask if padded else None, 6, True, softmax_scale=0.2,
                            sliding_window=window, softcap=softcap, s_aux=extra,
                            attn_implementation=f"flash_attention_{{version}}",
                        )
                        assert utils._flash_fn is module.flash_attn_func
                        want = eager(padded, window, softcap, extra)
                        rows = mask.bool() if padded else torch.ones_like(mask).bool()
                        error = (o.double() - want)[rows].abs().max().item()
                        assert error < (3e-3 if dtype == torch.float16 else 1e-5), (
                            version, padded, window, softcap, error)
        """
    )
