//! Weights from `.safetensors` files.

use super::Tensor;
use crate::Engine;
use kp_hal::{DType, Error, ErrorKind, Result};
use safetensors::{Dtype, SafeTensors};
use std::{collections::BTreeMap, path::Path};

/// The tensors of a file by name.
#[derive(Clone, Debug, Default)]
pub struct Weights(BTreeMap<String, Tensor>);

impl Engine {
    /// Every tensor of a `.safetensors` file, on this engine's device.
    ///
    /// # Errors
    /// `Unavailable` if the file cannot be read, is not in that format, or has a tensor of a type that kp has not;
    /// `OutOfMemory`.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Weights> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|error| bad(path, &error))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| bad(path, &error))?;
        let mut weights = BTreeMap::new();
        for (name, view) in file.iter() {
            let dtype =
                dtype(view.dtype()).ok_or_else(|| bad(path, &format_args!("{name} is of type {:?}", view.dtype())))?;
            weights.insert(name.to_owned(), Tensor::from_bytes(self, view.shape(), dtype, view.data())?);
        }
        Ok(Weights(weights))
    }
}

impl Weights {
    /// The tensor of that name; shares its buffer.
    ///
    /// # Errors
    /// `Unavailable`, naming a few of the tensors there are.
    pub fn get(&self, name: &str) -> Result<Tensor> {
        self.0.get(name).cloned().ok_or_else(|| {
            const SHOWN: usize = 5;
            let some: Vec<&str> = self.0.keys().take(SHOWN).map(String::as_str).collect();
            let more = if self.0.len() > SHOWN { ", …" } else { "" };
            let why = format!("no {name} among {} tensors: {}{more}", self.0.len(), some.join(", "));
            ErrorKind::Unavailable { what: "a weight", why: why.into() }.into()
        })
    }

    /// Names and tensors in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn dtype(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        Dtype::F8_E4M3 => DType::E4m3,
        Dtype::F8_E5M2 => DType::E5m2,
        Dtype::I8 => DType::I8,
        Dtype::U8 => DType::U8,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        _ => return None,
    })
}

fn bad(path: &Path, why: &dyn std::fmt::Display) -> Error {
    ErrorKind::Unavailable { what: "weights", why: format!("{}: {why}", path.display()).into() }.into()
}
