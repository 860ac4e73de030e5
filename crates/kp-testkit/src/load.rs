//! Operands on a device, fenced: guard bytes on both sides, addresses aligned as promised and no better.

use crate::operands::Operands;
use kp_hal::{
    Buffer, Device, Error, MemoryKind, Queue,
    op::{ArgError, Args, Op, Operand, View},
};
use std::sync::Arc;

/// The operands of one problem in device memory.
#[derive(Debug)]
pub struct Loaded {
    list: &'static [Operand],
    parts: Vec<Option<Fenced>>,
}

/// One operand inside a larger buffer.
#[derive(Debug)]
struct Fenced {
    buffer: Buffer,
    start: u64,
    bytes: u64,
    guard: u8,
}

/// Guard bytes before an operand, besides its offset.
const FRONT: u64 = 512;
/// Guard bytes after it; more than a row of most tiles.
const BACK: u64 = 1024;
/// Around outputs: any byte that no kernel is likely to write.
const OUTPUT_GUARD: u8 = 0xa5;
/// Around inputs: NaN in every IEEE type, −1 in every integer.
const INPUT_GUARD: u8 = 0xff;

impl Loaded {
    /// Allocates and uploads.
    ///
    /// # Errors
    /// What the device says.
    pub fn new(device: &Arc<dyn Device>, queue: &mut dyn Queue, operands: &Operands) -> Result<Self, Error> {
        let mut parts = Vec::new();
        for (i, operand) in operands.list().iter().enumerate() {
            let Some(bytes) = operands.at(i) else {
                parts.push(None);
                continue;
            };
            // An odd multiple of the alignment: whoever assumes twice as much will fault or be caught by the guards.
            let start = FRONT + u64::from(operands.needs().get(i).align);
            let size = start + bytes.len() as u64 + BACK;
            let buffer = device.clone().alloc(size, MemoryKind::Device)?;
            let guard = if operand.output { OUTPUT_GUARD } else { INPUT_GUARD };
            parts.push(Some(Fenced { buffer, start, bytes: bytes.len() as u64, guard }));
        }
        let mut loaded = Self { list: operands.list(), parts };
        loaded.upload(queue, operands)?;
        Ok(loaded)
    }

    /// Replaces the contents, guards included.
    ///
    /// # Errors
    /// What the queue says.
    pub fn upload(&mut self, queue: &mut dyn Queue, operands: &Operands) -> Result<(), Error> {
        for (i, part) in self.parts.iter_mut().enumerate() {
            if let (Some(part), Some(bytes)) = (part, operands.at(i)) {
                let mut image = vec![part.guard; part.buffer.bytes() as usize];
                image[part.start as usize..][..bytes.len()].copy_from_slice(bytes);
                queue.upload(part.buffer.slice_mut(), &image)?;
            }
        }
        Ok(())
    }

    /// The arguments of a launch, with the scalars of `operands`.
    pub fn args<O: Op>(&mut self, operands: &Operands) -> O::Args<'_> {
        let views = self.views(|_, range| range);
        bind::<O>(views, operands).expect("every operand of the problem was loaded")
    }

    /// The same with operand `i` moved by `by` bytes and shortened by `less`.
    ///
    /// # Errors
    /// `Missing` if an operand that every problem has is not there.
    pub fn args_spoiled<O: Op>(
        &mut self,
        operands: &Operands,
        (i, by, less): (usize, u64, u64),
    ) -> Result<O::Args<'_>, ArgError> {
        let views = self.views(|at, range| if at == i { range.start + by..range.end + by - less } else { range });
        bind::<O>(views, operands)
    }

    fn views(&mut self, range: impl Fn(usize, std::ops::Range<u64>) -> std::ops::Range<u64>) -> Vec<Option<View<'_>>> {
        let parts = self.parts.iter_mut().zip(self.list).enumerate();
        parts
            .map(|(i, (part, operand))| {
                let part = part.as_mut()?;
                let range = range(i, part.start..part.start + part.bytes);
                Some(match operand.output {
                    true => View::Out(part.buffer.slice_mut().at(range)),
                    false => View::In(part.buffer.slice().at(range)),
                })
            })
            .collect()
    }

    /// Everything as it is now, in the shape of `operands`.
    ///
    /// # Errors
    /// The queue's error, or which guard or input was written and where.
    pub fn download(&self, queue: &mut dyn Queue, operands: &Operands) -> Result<Operands, String> {
        let mut after = operands.clone();
        for (i, (part, operand)) in self.parts.iter().zip(self.list).enumerate() {
            let (Some(part), Some(bytes)) = (part, after.at_mut(i)) else { continue };
            let mut image = vec![0; part.buffer.bytes() as usize];
            queue.download(&mut image, part.buffer.slice()).map_err(|e| e.to_string())?;
            let (front, rest) = image.split_at(part.start as usize);
            let (middle, back) = rest.split_at(part.bytes as usize);
            let (name, guard) = (operand.name, part.guard);
            if let Some(at) = front.iter().rposition(|&b| b != guard) {
                return Err(format!("{} bytes before {name} were written", part.start as usize - at));
            }
            if let Some(at) = back.iter().position(|&b| b != guard) {
                return Err(format!("byte {at} past the end of {name} was written: {:#04x}", back[at]));
            }
            if let (false, Some(at)) = (operand.output, middle.iter().zip(&*bytes).position(|(new, old)| new != old)) {
                return Err(format!("byte {at} of the input {name} was written"));
            }
            bytes.copy_from_slice(middle);
        }
        Ok(after)
    }
}

pub(crate) fn bind<'a, O: Op>(views: Vec<Option<View<'a>>>, operands: &Operands) -> Result<O::Args<'a>, ArgError> {
    let mut args = O::Args::bind(views)?;
    for &(name, value) in operands.scalars() {
        assert!(args.set_scalar(name, value), "{name} is a scalar of {}", O::NAME);
    }
    Ok(args)
}
