"""DistributedDataParallel: gradients are seen when backward ends, or from inside a comm hook where they live in DDP's
buckets.

With ``gradient_as_bucket_view`` (and DDP's own mixed precision, or its Python reducer) a comm hook looks at each bucket
and then lets the user's hook, or the default, reduce it. DDP takes one comm hook, ever. Ours is registered first and
``register_comm_hook`` of this instance is taken over, so that the user's later hook is chained behind it. Where a hook
is taken already, gradients are seen by ``post_accumulate_grad`` hooks.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from trueline.capture.adapters.backward_end import BackwardEnd
from trueline.capture.adapters.base import Guard, HookingAdapter, Reduction, uncompiled
from trueline.capture.adapters.manual import watch_accumulation
from trueline.capture.model.mesh import workers_in
from trueline.capture.model.untraced import Hook, forward_module, skipped, untraced
from trueline.capture.probes.gradients import GradientProbe

BucketViews = list[tuple[Tensor, torch.Size, tuple[int, ...], int]]
"""(parameter, shape, strides, offset in the bucket) of each gradient of a bucket."""
UserHook = tuple[Any, Callable[[Any, dist.GradBucket], torch.futures.Future[Tensor]]]

_EXACT = {"allreduce_hook": None, "fp16_compress_hook": torch.float16, "bf16_compress_hook": torch.bfloat16}
_LOCAL = ("localsgd", "noop")
_LOSSY = ("powersgd", "quantization", "localsgd", "noop", "ddp_zero", "optimizer_overlap")

PRECEDENCE = 30


def adapter_for(model: nn.Module, process_group: dist.ProcessGroup | None) -> "DdpAdapter | None":
    """The adapter of a DDP module."""
    ddp = uncompiled(model)
    if not isinstance(ddp, nn.parallel.DistributedDataParallel):
        return None
    return DdpAdapter(ddp, outer=model, process_group=process_group)


class CommHook:
    """The comm hook that DDP calls once a bucket. A copy of it (deepcopy, pickle of the model) reduces and watches
    nothing.
    """

    __name__ = "trueline"

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        self.__qualname__ = self.__name__  # DDP logs a hook by its names
        self.user: UserHook | None = None
        self.probe: GradientProbe | None = None
        self.guard: Guard | None = None
        self._grad_addresses: dict[int, int] = {}
        self._group = process_group

    @skipped
    def __call__(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Look at the bucket, reduce it, look at the result."""
        views = untraced(self._see, bucket)
        if self.user is None:
            future = untraced(self._reduce, bucket)
        else:
            state, hook = self.user
            future = hook(state, bucket)
        return future if views is None else untraced(self._look_later, future, views)

    def _see(self, bucket: dist.GradBucket) -> "BucketViews | None":
        """Show the bucket to the probe; where each gradient is in it, if the result is to be looked at too."""
        probe, guard = self.probe, self.guard
        if probe is None or guard is None or not probe.active or bucket.buffer().layout != torch.strided:
            return None
        views: BucketViews = []
        with guard("gradients"):
            start = bucket.buffer().storage_offset()
            pairs = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
            views = [(param, g.shape, g.stride(), g.storage_offset() - start) for param, g in pairs]
            probe.see("local", pairs)
        return views if probe.wants_reduced else None

    def _look_later(self, future: torch.futures.Future[Any], views: BucketViews) -> torch.futures.Future[Tensor]:
        probe, guard = self.probe, self.guard
        if probe is None or guard is None:
            return future

        @skipped
        def look(reduced: torch.futures.Future[Any]) -> Tensor:
            value = reduced.value()
            flat: Tensor = value[0] if isinstance(value, (list, tuple)) else value
            untraced(see, flat)
            return flat

        def see(flat: Tensor) -> None:
            with guard("gradients"):
                first = flat.storage_offset()
                probe.see(
                    "reduced", [(p, flat.as_strided(shape, stride, first + at)) for p, shape, stride, at in views]
                )

        return future.then(look)

    def remember_address(self, param: Tensor) -> None:
        """Note the address of a gradient when autograd has accumulated it, just before DDP looks at it."""
        if param.grad is not None:
            self._grad_addresses[id(param)] = param.grad.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CommHook":
        return CommHook()

    def __reduce__(self) -> "tuple[type[CommHook], tuple[()]]":
        return (CommHook, ())

    def _reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """As DDP does where no hook is registered."""
        group = self._group if self._group is not None else dist.group.WORLD
        assert group is not None
        self._divide(bucket, group.size())
        work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def _divide(self, bucket: dist.GradBucket, size: int) -> None:
        """Divide as DDP's C++ reducer does, to the bit: it multiplies by 1/N while copying a gradient into the
        bucket, and divides by N where the gradient lives in the bucket already (reducer.cpp,
        mark_variable_ready_dense).
        """
        if not self._grad_addresses:
            bucket.buffer().mul_(1.0 / size)
            return
        for param, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if self._grad_addresses.get(id(param)) == gradient.data_ptr():
                gradient.div_(size)
            else:
                gradient.mul_(1.0 / size)


class DdpAdapter(HookingAdapter):
    """Watches one DDP module. ``outer`` is the module that the training script calls: ``ddp``, or what compiled it;
    ``process_group`` the workers whose gradients should be averaged together, where the user says so: DDP may have been
    given others.
    """

    name = "ddp"

    def __init__(
        self,
        ddp: nn.parallel.DistributedDataParallel,
        outer: nn.Module | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(workers_in(process_group or ddp.process_group))
        self._ddp = ddp
        self.reduces_by_hand = bool(ddp.parameters_to_ignore)  # experts, most often
        self._outer = outer if outer is not None else ddp
        inside = forward_module(self._outer) not in (None, ddp, self._outer)
        self._seen_inside = inside and not getattr(ddp, "_use_python_reducer", False)
        self._end: BackwardEnd | None = None
        self._hook: CommHook | None = None
        self._fallback = ""
        if not _lives_outside_buckets(ddp, self._outer):
            self._hook = CommHook(ddp.process_group)
            self._fallback = self._take_over(self._hook)

    def goes_round(self) -> bool | None:
        """True if the forward pass of the wrapped module that begins was not called by DDP; None where only DDP's own
        is seen.
        """
        return getattr(self._ddp, "_active_ddp_module", None) is None if self._seen_inside else None

    def attach(self, probe: GradientProbe, guard: Guard) -> None:
        """Let gradients be reported to ``probe``: at the end of backward, by the comm hook, or, where that was taken,
        by accumulation hooks.
        """
        if self._hook is not None:
            self._hook.probe, self._hook.guard = probe, guard
            if self._fallback:
                super().detach()
                self.handles = watch_accumulation(probe, guard, due=self._reduces)
        if self._end is None and getattr(self._outer, "_compiled_call_impl", None) is None:
            ignored = self._ddp.parameters_to_ignore
            named_params = self._ddp.module.named_parameters()
            reduced = [param for name, param in named_params if param.requires_grad and name not in ignored]
            hooked = self._hook is not None
            self._end = BackwardEnd(self._outer, reduced=reduced, due=self._reduces, only_left=hooked)
        if self._end is not None:
            self._end.probe, self._end.guard = probe, guard

    def reduction(self) -> Reduction:
        """The user's hook, and the dtype and number of roundings that it implies."""
        size = len(self.mesh.members)
        dtype = self._bucket_dtype
        hook = self._users_hook()
        if hook is None and self._fallback:
            return Reduction(hook=self._fallback, known=False, dtype=dtype, roundings=size + 2, seen=False)
        if hook is None:
            return Reduction(dtype=dtype, roundings=size + 1)
        name = getattr(hook, "__qualname__", type(hook).__name__)
        compressed = _compression(hook)
        return Reduction(
            hook=name,
            known=name in _EXACT,
            lossy=_is_any(hook, _LOSSY),
            local=_is_any(hook, _LOCAL),
            dtype=str(compressed) if compressed is not None else dtype,
            roundings=size + 2,
            seen=not self._fallback,
        )

    def detach(self) -> None:
        """Stop looking; a comm hook stays (DDP cannot give it back) and only reduces."""
        if self._end is not None:
            self._end.remove()
            self._end = None
        if self._hook is not None:
            self._hook.probe = None
        super().detach()

    @functools.cached_property
    def _bucket_dtype(self) -> str:
        """The coarsest dtype among the trainable parameters: buckets are of their dtype."""
        dtypes = {param.dtype for param in self._ddp.module.parameters() if param.requires_grad}
        return str(max(dtypes, key=lambda dtype: torch.finfo(dtype).eps))

    def _reduces(self) -> bool:
        return bool(self._ddp.require_backward_grad_sync)

    def _users_hook(self) -> Any:
        """The hook that reduces, chained behind ours or registered with DDP; None where it is DDP's own reduction."""
        if self._hook is not None and self._hook.user is not None:
            return self._hook.user[1]
        registered = next((hook for hook, _ in self._ddp._comm_hooks if not isinstance(hook, CommHook)), None)
        return registered if registered is not None or self._hook is not None else _built_in(self._ddp)

    def _take_over(self, hook: CommHook) -> str:
        """Register ``hook``; '' on success, else what holds the place."""
        ddp = self._ddp
        own_hook = next((hook for hook, _ in ddp._comm_hooks if isinstance(hook, CommHook)), None)
        if own_hook is not None:  # watched before: by `trueline run` at construction, or by a Watch that was closed
            self._hook = own_hook
            return ""
        hook_names = [getattr(hook, "__qualname__", "a hook") for hook, _ in ddp._comm_hooks]
        if not hook_names:
            try:
                ddp.register_comm_hook(None, hook)  # type: ignore[arg-type]
            except RuntimeError:
                hook_names = ["a built-in comm hook"]
        if hook_names:
            self.notes.append(
                f"DDP's one comm hook was taken by {hook_names[0]} before watching began: gradients are seen as they "
                "accumulate, and the reduction is judged by what the optimizer receives."
            )
            return hook_names[0]
        size = dist.get_world_size(ddp.process_group)
        if ddp.gradient_as_bucket_view and size & (size - 1):  # 1/N is exact for powers of two
            for param in ddp.module.parameters():
                if param.requires_grad:
                    param.register_post_accumulate_grad_hook(Hook(hook.remember_address))
        ddp.register_comm_hook = _Registrar(hook, _as_given, check=ddp._check_comm_hook)  # type: ignore[method-assign]
        ddp._register_builtin_comm_hook = _Registrar(hook, _from_builtin)  # type: ignore[method-assign]
        return ""


class _Registrar:
    """Stands for DDP's own registration methods on one instance and keeps their rule: one hook, once."""

    def __init__(
        self,
        own_hook: CommHook | None = None,
        read_hook: Callable[..., UserHook] | None = None,
        *,
        check: Callable[[Any], None] | None = None,
    ) -> None:
        self._own_hook = own_hook
        self._read_hook = read_hook
        self._check = check

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._own_hook is None or self._read_hook is None:
            return
        if self._own_hook.user is not None:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        user = self._read_hook(*args, **kwargs)
        if self._check is not None:
            self._check(user[1])
        self._own_hook.user = user

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Registrar":
        return _Registrar()

    def __reduce__(self) -> "tuple[type[_Registrar], tuple[()]]":
        return (_Registrar, ())


def _as_given(state: Any, hook: Any) -> UserHook:
    return state, hook


def _from_builtin(kind: dist.BuiltinCommHookType) -> UserHook:
    if kind == dist.BuiltinCommHookType.FP16_COMPRESS:
        return None, default_hooks.fp16_compress_hook
    return None, default_hooks.allreduce_hook


def _lives_outside_buckets(ddp: nn.parallel.DistributedDataParallel, outer: nn.Module) -> bool:
    """True if ``.grad`` is the worker's own gradient until DDP ends backward, and the call that leads there is seen."""
    in_buckets = ddp.gradient_as_bucket_view or ddp.mixed_precision is not None or ddp._use_python_reducer
    return not in_buckets and getattr(outer, "_compiled_call_impl", None) is None


def _built_in(ddp: nn.parallel.DistributedDataParallel) -> Any:
    """The built-in (C++) hook that was registered, as its twin in Python; None where there is none."""
    logger: Any = ddp.logger  # `_get_ddp_logging_data` would make a dict of everything there, at every step
    name = str(logger._get_ddp_logging_data().strs_map.get("comm_hook", "")) if logger is not None else ""
    if "FP16_COMPRESS" in name:
        return default_hooks.fp16_compress_hook
    return default_hooks.allreduce_hook if "ALLREDUCE" in name else None


def _inner(hook: Any) -> list[Any]:
    """The hook and what it wraps (`fp16_compress_wrapper` keeps the inner hook in its closure)."""
    cells = getattr(hook, "__closure__", None) or ()
    return [hook, *(cell.cell_contents for cell in cells if callable(cell.cell_contents))]


def _is_any(hook: Any, words: tuple[str, ...]) -> bool:
    texts = [f"{getattr(part, '__module__', '')}.{getattr(part, '__qualname__', '')}".lower() for part in _inner(hook)]
    return any(word in text for word in words for text in texts)


def _compression(hook: Any) -> torch.dtype | None:
    for part in _inner(hook):
        name = getattr(part, "__qualname__", "").split(".")[0]
        if name in _EXACT:
            return _EXACT[name]
        if name in ("fp16_compress_wrapper", "bf16_compress_wrapper"):
            return torch.float16 if name.startswith("fp16") else torch.bfloat16
    return None
