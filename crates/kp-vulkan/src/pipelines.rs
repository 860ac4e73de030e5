//! Shaders made ready, each once; what the driver made of them is kept on disk.

use crate::{
    driver::{Logical, OPEN_NUMBERS, Status, checked},
    shaders::Shader,
};
use ash::vk;
use kp_hal::{cache, source_hash};
use std::{
    collections::HashMap,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// A shader with its constants.
#[derive(Clone, Debug)]
pub(crate) struct Build {
    pub(crate) shader: &'static Shader,
    /// Specialization constants 0, 1, … in order; floats and bools as their bits.
    pub(crate) constants: Vec<u32>,
    /// The subgroup's size, if the shader depends on it.
    pub(crate) subgroup: Option<u32>,
}

/// The constant of that name in `kernels/common/glsl/numbers.glsl`; a shader without it takes no notice.
const NATIVE: u32 = 100;

/// A kernel ready to launch. Its device keeps it for as long as it is open, so a copy of the handle is enough.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) raw: vk::Pipeline,
    /// Of an open shader: how many numbers follow the arguments, and which.
    pub(crate) numbers: (u8, [u32; OPEN_NUMBERS]),
}

type Key = (&'static str, Vec<u32>, Option<u32>);
/// Empty until one was made: what failed for want of memory may be asked for again.
type Slot = Arc<Mutex<Option<vk::Pipeline>>>;

/// The pipelines of one device.
pub(crate) struct Pipelines {
    device: Arc<Logical>,
    cache: vk::PipelineCache,
    file: Option<PathBuf>,
    made: Mutex<HashMap<Key, Slot>>,
}

impl Pipelines {
    pub(crate) fn new(device: &Arc<Logical>) -> Result<Self, Status> {
        let file = file(&device.seen.cache_uuid);
        // Without it, or with one that is damaged, shaders are compiled again.
        let before = file.as_deref().and_then(|file| read(file).ok()).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&before);
        // SAFETY: the device is alive; the data is what this user's processes had from a driver of this identity, whole, which the
        // driver checks too; destroyed by `drop`.
        let cache = checked("vkCreatePipelineCache", unsafe { device.create_pipeline_cache(&info, None) })?;
        Ok(Self { device: device.clone(), cache, file, made: Mutex::default() })
    }

    /// The kernel that `build` describes, which converts numbers by the device's own means if they are `native`. Threads that ask
    /// for one at once get one; different ones are made at the same time.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn function(&self, build: &Build, native: bool) -> Result<Function, Status> {
        let open = build.shader.open.as_ref().filter(|_| self.device.seen.is_open());
        let mut key = (build.shader.name, build.constants.clone(), build.subgroup);
        let mut numbers = (0, [0; OPEN_NUMBERS]);
        let mut spirv = build.shader.spirv;
        if let Some(open) = open {
            numbers.1[..open.count].copy_from_slice(&build.constants[..open.count]);
            // One pipeline whatever they are.
            (0..open.count).filter(|id| !open.but.contains(id)).for_each(|id| key.1[id] = 0);
            for (number, &id) in numbers.1[open.count..].iter_mut().zip(open.and) {
                // Not every problem has all of them.
                *number = key.1.get_mut(id).map_or(0, std::mem::take);
            }
            (numbers.0, spirv) = ((open.count + open.and.len()) as u8, open.spirv);
        }
        let slot = self.made.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
        let mut made = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let raw = match *made {
            Some(raw) => raw,
            None => *made.insert(self.make(build, spirv, native)?),
        };
        Ok(Function { raw, numbers })
    }

    fn make(&self, build: &Build, spirv: &[u8], native: bool) -> Result<vk::Pipeline, Status> {
        let Self { device, cache, .. } = self;
        let words: Vec<u32> = spirv.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: the words are what the compiler wrote and the validator passed.
        let module = checked("vkCreateShaderModule", unsafe { device.create_shader_module(&info, None) })?;
        let ids = (0..build.constants.len() as u32).chain([NATIVE]);
        let entries: Vec<_> = (ids.zip(0..))
            .map(|(id, at)| vk::SpecializationMapEntry::default().constant_id(id).offset(4 * at).size(4))
            .collect();
        let values = build.constants.iter().copied().chain([u32::from(native)]);
        let data: Vec<u8> = values.flat_map(u32::to_ne_bytes).collect();
        let constants = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
            .required_subgroup_size(build.subgroup.unwrap_or(0));
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&constants);
        if build.subgroup.is_some() && device.seen.facts.can.subgroup_size {
            stage = stage.push_next(&mut size);
        }
        let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(device.layout)];
        // SAFETY: module, layout and cache are alive and of this device.
        let made = unsafe { device.create_compute_pipelines(*cache, &info, None) };
        // SAFETY: a pipeline needs its module no longer.
        unsafe { device.destroy_shader_module(module, None) };
        match made {
            Ok(pipelines) => Ok(pipelines[0]),
            Err((_, code)) => Err(Status { call: "vkCreateComputePipelines", code }),
        }
    }

    /// Writes what the driver keeps of its work; nothing that goes wrong here is an error.
    fn save(&self) {
        let Some(file) = &self.file else { return };
        // SAFETY: the cache is alive.
        let Ok(data) = (unsafe { self.device.get_pipeline_cache_data(self.cache) }) else { return };
        if let Err(why) = cache::replace(file, &wrapped(&data)) {
            tracing::warn!(file = %file.display(), %why, "the pipeline cache is not kept");
        }
    }
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        let made = std::mem::take(self.made.get_mut().unwrap_or_else(PoisonError::into_inner));
        if !made.is_empty() {
            self.save();
        }
        let pipelines = made.into_values().filter_map(|slot| *slot.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: no queue is left that could launch them, and each waited for its work.
        unsafe {
            pipelines.for_each(|pipeline| self.device.destroy_pipeline(pipeline, None));
            self.device.destroy_pipeline_cache(self.cache, None);
        }
    }
}

const MAGIC: &[u8; 16] = b"kp vulkan cache1";
const HEADER: usize = 32;

/// Largest file that is read, in bytes; one that is cut there is not whole.
const MOST_BYTES: u64 = 256 << 20;

/// The file's form: magic, hash of the data, its length, the data. Drivers check whose data it is, few that it is whole.
fn wrapped(data: &[u8]) -> Vec<u8> {
    let (hash, length) = (source_hash(data).to_le_bytes(), (data.len() as u64).to_le_bytes());
    [MAGIC.as_slice(), &hash, &length, data].concat()
}

/// The data of a file that is whole.
fn unwrapped(file: &[u8]) -> Option<&[u8]> {
    let (header, data) = file.split_at_checked(HEADER)?;
    (header == &wrapped(data)[..HEADER]).then_some(data)
}

/// What an earlier device of this driver kept in `file`, if it is whole; nothing that goes wrong here is an error.
fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(file)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    unwrapped(&bytes).map(<[u8]>::to_vec).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is not whole"))
}

/// The file of this driver's work, in a folder to which nobody else writes; what it holds is handed to the driver as code.
fn file(uuid: &[u8; 16]) -> Option<PathBuf> {
    let folder = cache::home()?.join("vulkan");
    match cache::make_private(&folder) {
        Ok(()) => Some(folder.join(uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>())),
        Err(why) => {
            tracing::warn!(folder = %folder.display(), %why, "the pipeline cache is not kept: set KP_CACHE_DIR");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_whole_is_ignored() {
        let file = wrapped(b"what a driver wrote");
        assert_eq!(unwrapped(&file), Some(b"what a driver wrote".as_slice()));
        assert_eq!(unwrapped(&file[..file.len() - 1]), None, "cut short");
        assert_eq!(unwrapped(&file[..HEADER - 1]), None);
        for at in [0, 20, 26, file.len() - 1] {
            let mut bad = file.clone();
            bad[at] ^= 1;
            assert_eq!(unwrapped(&bad), None, "byte {at} altered");
        }
    }
}
