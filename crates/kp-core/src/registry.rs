//! Which devices there are, which is best, and which one a name means.

use crate::backends::LEFT_OUT;
use kp_hal::{Backend, DeviceInfo};
use std::fmt;

/// A device some backend listed.
#[derive(Clone)]
pub struct Listed {
    /// Who listed it.
    pub backend: &'static dyn Backend,
    /// What it is.
    pub info: DeviceInfo,
}

/// Prints as `nvidia:0 "NVIDIA H200"`.
impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {:?}", self.backend.name(), self.info.index, self.info.name)
    }
}

impl fmt::Debug for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A backend or device that is not there, and why; prints as `nvidia (libcuda.so.1 not found)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The backend, or `backend:index`.
    pub what: String,
    /// What was looked for, or what the driver said.
    pub why: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.why)
    }
}

/// Everything the backends found.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    /// Who was asked, preferred first.
    pub backends: Vec<&'static str>,
    /// Each device once, best first: by kind, then by memory bandwidth, then as the backends stand.
    pub devices: Vec<Listed>,
    /// Devices of `devices` again, seen by a less preferred backend. Used only when asked for by name.
    pub twins: Vec<Listed>,
    /// What is not there, with the reason.
    pub unavailable: Vec<Unavailable>,
}

impl Registry {
    /// Asks each of `backends`, preferred first, for its devices. Opens none.
    pub fn survey(backends: &[&'static dyn Backend]) -> Self {
        let mut found = Self { backends: backends.iter().map(|b| b.name()).collect(), ..Self::default() };
        for &backend in backends {
            let _span = tracing::debug_span!("list", backend = backend.name()).entered();
            match backend.devices() {
                Ok(devices) => found.add(backend, devices),
                Err(error) => {
                    tracing::debug!(%error, "backend unavailable");
                    found.unavailable.push(Unavailable { what: backend.name().into(), why: reason(&error) });
                }
            }
        }
        found.devices.sort_by(|a, b| {
            let kinds = a.info.caps.kind.partial_cmp(&b.info.caps.kind).expect("kinds have an order");
            kinds.then_with(|| b.info.caps.bytes_per_s.total_cmp(&a.info.caps.bytes_per_s))
        });
        found
    }

    fn add(&mut self, backend: &'static dyn Backend, devices: Vec<DeviceInfo>) {
        for info in devices {
            // Two devices of one backend are two, even if they share a card.
            let twin = |d: &Listed| d.backend.name() != backend.name() && same_card(&d.info, &info);
            let list = if self.devices.iter().any(twin) { &mut self.twins } else { &mut self.devices };
            list.push(Listed { backend, info });
        }
    }

    /// The devices that `wanted` means, best first: those of a backend (`cpu`), one of them (`nvidia:1`), or those
    /// whose name contains it, whatever the case. `None` means all.
    ///
    /// # Errors
    /// [`NoDevice`], naming what there is, if there is none of that name.
    pub fn choose(&self, wanted: Option<&str>) -> Result<Vec<&Listed>, Box<NoDevice>> {
        let all = || self.devices.iter().chain(&self.twins);
        let Some(wanted) = wanted else {
            return if self.devices.is_empty() { Err(self.none(None)) } else { Ok(self.devices.iter().collect()) };
        };
        let asked = wanted.trim();
        let by_backend = |d: &&Listed| match asked.split_once(':') {
            None => d.backend.name() == asked,
            Some((backend, index)) => d.backend.name() == backend && index.parse() == Ok(d.info.index),
        };
        let by_name = |d: &&Listed| !asked.is_empty() && d.info.name.to_lowercase().contains(&asked.to_lowercase());
        let mut chosen: Vec<_> = all().filter(by_backend).collect();
        if chosen.is_empty() {
            chosen = all().filter(by_name).collect();
        }
        if chosen.is_empty() { Err(self.none(Some(wanted))) } else { Ok(chosen) }
    }

    /// The error that no device is left, naming all there are.
    pub(crate) fn none(&self, wanted: Option<&str>) -> Box<NoDevice> {
        Box::new(NoDevice {
            wanted: wanted.map(Into::into),
            devices: self.devices.iter().chain(&self.twins).map(ToString::to_string).collect(),
            unavailable: self.unavailable.clone(),
            backends: self.backends.clone(),
        })
    }
}

/// `error` without the words that its list says already.
pub(crate) fn reason(error: &kp_hal::Error) -> String {
    match error.kind() {
        kp_hal::ErrorKind::Unavailable { why, .. } => why.clone().into_owned(),
        _ => error.to_string(),
    }
}

fn same_card(a: &DeviceInfo, b: &DeviceInfo) -> bool {
    let same = |x: Option<bool>| x == Some(true);
    same(a.pci.zip(b.pci).map(|(a, b)| a == b)) || same(a.uuid.zip(b.uuid).map(|(a, b)| a == b))
}

/// `backends` with `added` in front, which replaces a backend of its name.
pub(crate) fn prefer(backends: &mut Vec<&'static dyn Backend>, added: &'static dyn Backend) {
    backends.retain(|b| b.name() != added.name());
    backends.insert(0, added);
}

/// No device, or none of the name that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoDevice {
    /// What was asked for; `None` if anything would have done.
    pub wanted: Option<String>,
    /// What there is, as `nvidia:0 "NVIDIA H200"`.
    pub devices: Vec<String>,
    /// What there is not, and why.
    pub unavailable: Vec<Unavailable>,
    /// The backends of this build, preferred first: another may need a feature that it was built without.
    pub backends: Vec<&'static str>,
}

impl NoDevice {
    /// The backend that was asked for, if a device's name was not: `nvidia` of `nvidia:1`.
    fn backend(&self) -> Option<&str> {
        self.wanted.as_deref().map(|wanted| wanted.split(':').next().unwrap_or(wanted).trim())
    }

    /// Whether nothing has the name that was asked for. A backend that is of this build and finds no device here has it.
    pub fn is_unknown(&self) -> bool {
        self.backend().is_some_and(|backend| !self.unavailable.iter().any(|one| one.what == backend))
    }
}

impl std::error::Error for NoDevice {}

impl fmt::Display for NoDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.wanted {
            Some(wanted) => write!(f, "no device {wanted:?}: ")?,
            None => f.write_str("no device: ")?,
        }
        if let Some(feature) = self.backend().filter(|name| LEFT_OUT.contains(name) && !self.backends.contains(name)) {
            write!(f, "built without feature `{feature}`; ")?;
        }
        match &self.devices[..] {
            [] if self.backends.is_empty() => return f.write_str("this build has no backend"),
            [] => f.write_str("there is none")?,
            devices => write!(f, "there is {}", devices.join(", "))?,
        }
        if let [first, rest @ ..] = &self.unavailable[..] {
            write!(f, "; unavailable: {first}")?;
            rest.iter().try_for_each(|other| write!(f, ", {other}"))?;
        }
        match self.wanted {
            Some(_) => write!(f, "; backends of this build: {}", self.backends.join(", ")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_a_backend_left_out_from_one_that_finds_nothing() {
        let lost = Unavailable { what: "cuckoo".into(), why: "no nest".into() };
        let registry = Registry { backends: vec!["cuckoo"], unavailable: vec![lost], ..Registry::default() };
        for name in LEFT_OUT {
            for wanted in [(*name).to_owned(), format!("{name}:1")] {
                let none = registry.none(Some(&wanted));
                let said = format!(
                    "no device {wanted:?}: built without feature `{name}`; there is none; unavailable: cuckoo (no nest); \
                     backends of this build: cuckoo"
                );
                assert_eq!((none.to_string(), none.is_unknown()), (said, true));
            }
        }
        for (wanted, unknown) in [("cuckoo", false), ("cuckoo:1", false), ("toaster", true)] {
            let none = registry.none(Some(wanted));
            assert!(none.is_unknown() == unknown && !none.to_string().contains("feature"), "{none}");
        }
        assert!(!registry.none(None).is_unknown());
    }
}
