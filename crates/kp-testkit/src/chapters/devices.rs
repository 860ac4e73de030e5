//! What a backend says of its devices.

use super::{Check, ensure, fails};
use crate::check::Failure;
use kp_hal::{Backend, DType, Device, ErrorKind};
use std::sync::Arc;

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("are listed alike each time", listed_alike),
    ("open as they are listed", opened_as_listed),
    ("have distinct ids", distinct_ids),
    ("have capabilities that make sense", sensible_caps),
    ("that do not exist are unavailable", absent),
    ("have distinct kernels with names", named_kernels),
];

fn listed_alike(backend: &'static dyn Backend, _: &Arc<dyn Device>) -> Result<(), Failure> {
    let name = backend.name();
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    ensure(plain, || format!("a backend's name is lower case letters, digits and _, got `{name}`"))?;
    let list = || backend.devices().map(|d| d.into_iter().map(|d| (d.name, d.index, d.driver)).collect::<Vec<_>>());
    let (once, twice) = (list()?, list()?);
    ensure(once == twice && !once.is_empty(), || format!("first {once:?}, then {twice:?}"))
}

fn opened_as_listed(backend: &'static dyn Backend, _: &Arc<dyn Device>) -> Result<(), Failure> {
    for info in backend.devices()? {
        let device = backend.open(info.index)?;
        let own = device.info();
        ensure(own.name == info.name && own.index == info.index, || format!("listed {info:?}, opened {own:?}"))?;
        ensure(own.caps.kind == info.caps.kind && own.caps.arch == info.caps.arch, || {
            format!(
                "listed as {:?} {}, opened as {:?} {}",
                info.caps.kind, info.caps.arch, own.caps.kind, own.caps.arch
            )
        })?;
        let memory = device.memory()?;
        ensure(memory.free <= memory.total && memory.total > 0, || format!("memory is {memory:?}"))?;
    }
    Ok(())
}

fn distinct_ids(backend: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let again = backend.open(device.info().index)?;
    // A backend may hand out the device it has already opened, but two devices never share an id.
    let same = std::ptr::addr_eq(Arc::as_ptr(&again), Arc::as_ptr(device));
    ensure(same || again.id() != device.id(), || format!("two devices have id {}", device.id()))
}

fn sensible_caps(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let caps = device.caps();
    let positive = |x: f64| x.is_finite() && x > 0.0;
    ensure(positive(caps.bytes_per_s), || format!("bandwidth is {} bytes/s", caps.bytes_per_s))?;
    for &t in DType::ALL {
        ensure(positive(caps.rates.get(t)), || format!("peak of {t} is {}", caps.rates.get(t)))?;
    }
    ensure(caps.units > 0 && caps.lanes > 0 && caps.max_threads > 0 && caps.max_buffer_bytes > 0, || {
        format!("units, lanes, threads and buffers must be positive: {caps:?}")
    })?;
    ensure(!caps.arch.is_empty(), || "the architecture has no name".into())?;
    ensure(caps.features.is_sorted(), || format!("features are not sorted: {:?}", caps.features))?;
    let missing = caps.features.iter().find(|f| !caps.has(f));
    ensure(missing.is_none(), || format!("feature {missing:?} is listed but not found"))
}

fn absent(backend: &'static dyn Backend, _: &Arc<dyn Device>) -> Result<(), Failure> {
    fails(backend.open(u32::MAX), "Unavailable", |kind| matches!(kind, ErrorKind::Unavailable { .. }))
}

fn named_kernels(backend: &'static dyn Backend, _: &Arc<dyn Device>) -> Result<(), Failure> {
    use kp_hal::op::{EachOp, Op, each_op};
    struct Names(&'static dyn Backend, Result<(), Failure>);
    impl EachOp for Names {
        fn op<O: Op>(&mut self) {
            let mut names: Vec<_> = O::kernels(self.0.kernels()).iter().map(|k| k.name()).collect();
            let good = |n: &&str| n.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !n.is_empty();
            let bad = names.iter().find(|n| !good(n)).copied();
            names.sort_unstable();
            let twice = names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
            if let (Ok(()), Some(name)) = (&self.1, bad.or(twice)) {
                self.1 = Err(format!("{} has a kernel `{name}` twice, or named by more than a stem", O::NAME).into());
            }
        }
    }
    let mut names = Names(backend, Ok(()));
    each_op(&mut names);
    names.1
}
