//! The functions of the driver that kp calls; all of them are in every driver since CUDA 12.8.

use super::{Status, table::table};
use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute, CUgraph,
    CUgraphExec, CUlaunchConfig, CUmemAccessDesc, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUmodule,
    CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill,
    CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle, CUuuid,
};
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

table! {
    /// `libcuda`.
    pub(crate) struct Api: Status of sys, CUresult;
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);

    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuCtxSetCurrent(context: CUcontext);

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemPoolCreate(pool: *mut CUmemoryPool, props: *const CUmemPoolProps);
    fn cuMemPoolDestroy(pool: CUmemoryPool);
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    fn cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize);
    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    fn cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemFreeHost(address: *mut c_void);

    fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpyPeerAsync(dst: CUdeviceptr, to: CUcontext, src: CUdeviceptr, from: CUcontext, bytes: usize, stream: CUstream);
    fn cuMemsetD8Async(dst: CUdeviceptr, byte: c_uchar, bytes: usize, stream: CUstream);

    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, from: CUevent, to: CUevent);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    fn cuGraphDestroy(graph: CUgraph);
    fn cuGraphExecDestroy(exec: CUgraphExec);

    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    fn cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    fn cuOccupancyMaxActiveClusters(clusters: *mut c_int, function: CUfunction, config: *const CUlaunchConfig);
    fn cuLaunchKernelEx(config: *const CUlaunchConfig, function: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void);
    fn cuTensorMapEncodeTiled(
        map: *mut CUtensorMap,
        element: CUtensorMapDataType,
        rank: c_uint,
        address: *mut c_void,
        dims: *const u64,
        strides: *const u64,
        box_dims: *const c_uint,
        element_strides: *const c_uint,
        interleave: CUtensorMapInterleave,
        swizzle: CUtensorMapSwizzle,
        promotion: CUtensorMapL2promotion,
        fill: CUtensorMapFloatOOBfill,
    );
}
