//! How an engine is opened.

use super::Engine;
use crate::{
    backends,
    env::Env,
    error::Result,
    registry::{Registry, Unavailable, prefer, reason},
    wisdom::store::Store,
};
use kp_hal::{Backend, Repro};
use std::{fmt, path::PathBuf, time::Instant};

/// Which backends, which device, which wisdom. What is not said comes from the build and the environment.
#[must_use = "an engine is opened by `open`"]
pub struct EngineBuilder {
    backends: Vec<&'static dyn Backend>,
    env: Option<Env>,
    device: Option<String>,
    wisdom: Option<Option<PathBuf>>,
    repro: Repro,
}

impl Default for EngineBuilder {
    fn default() -> Self {
        Self { backends: backends::built_in(), env: None, device: None, wisdom: None, repro: Repro::default() }
    }
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backends: Vec<_> = self.backends.iter().map(|b| b.name()).collect();
        f.debug_struct("EngineBuilder").field("backends", &backends).field("device", &self.device).finish()
    }
}

impl EngineBuilder {
    /// One more backend, preferred to those named before; it replaces one of the same name.
    pub fn with(mut self, backend: &'static dyn Backend) -> Self {
        prefer(&mut self.backends, backend);
        self
    }

    /// `backend` alone, not those of this build.
    pub fn only(mut self, backend: &'static dyn Backend) -> Self {
        self.backends = vec![backend];
        self
    }

    /// The device to open, as `KP_DEVICE` would name it, and in its place.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// The wisdom file, in place of `KP_WISDOM` and the user's cache folder.
    pub fn wisdom(mut self, path: impl Into<PathBuf>) -> Self {
        self.wisdom = Some(Some(path.into()));
        self
    }

    /// No wisdom file: what is measured is known to this engine only.
    pub fn memory_only(mut self) -> Self {
        self.wisdom = Some(None);
        self
    }

    /// What is promised about the bits of every [`Tensor`](crate::Tensor) operation: [`Repro::BatchInvariant`] where an
    /// answer must not depend on what else is in the batch. Operations for which no kernel promises that are `Unsupported`.
    /// Problems that are planned by hand say it themselves.
    pub fn repro(mut self, repro: Repro) -> Self {
        self.repro = repro;
        self
    }

    /// An environment other than the process's.
    pub fn env(mut self, env: Env) -> Self {
        self.env = Some(env);
        self
    }

    /// Every device there is, best first, without opening any.
    pub fn survey(&self) -> Registry {
        Registry::survey(&self.backends)
    }

    /// Opens the best device, or the one asked for.
    ///
    /// # Errors
    /// `NoDevice` if there is none, none of that name, or none that opens; `Hal` if the one asked for is there and
    /// does not open.
    pub fn open(self) -> Result<Engine> {
        let start = Instant::now();
        let _span = tracing::debug_span!("open").entered();
        let mut registry = self.survey();
        let env = self.env.unwrap_or_else(Env::process);
        let wanted = self.device.or(env.device);
        let store = self.wisdom.unwrap_or(env.wisdom).map(Store::new);
        let chosen: Vec<_> = registry.choose(wanted.as_deref())?.into_iter().cloned().collect();
        for listed in chosen {
            let opened = listed.backend.open(listed.info.index);
            let engine = |device| Engine::new(listed.backend, device, registry.clone(), store.clone(), self.repro);
            match opened.and_then(engine) {
                Ok(engine) => {
                    tracing::info!(device = %listed, took = ?start.elapsed(), "opened");
                    return Ok(engine);
                }
                Err(error) if wanted.is_some() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(device = %listed, %error, "cannot be opened; trying the next");
                    let what = format!("{}:{}", listed.backend.name(), listed.info.index);
                    registry.unavailable.push(Unavailable { what, why: reason(&error) });
                }
            }
        }
        Err(registry.none(None).into())
    }
}
