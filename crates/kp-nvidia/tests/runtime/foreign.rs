//! Streams, memory and contexts of other libraries, played by the driver's own calls.

use crate::{alloc, contents, device, function, memory::wait_a_while, pattern, queue};
use cudarc::driver::sys;
use kp_hal::{ErrorKind, SliceMut};
use std::ptr;

#[test]
fn a_foreign_stream_can_be_a_queue() {
    let Some((device, _rest)) = device() else { return };
    let spin = function(&device, "spin");
    let mut raw = ptr::null_mut();
    // SAFETY: the driver is loaded and the device's context current on this thread since `function`.
    assert_eq!(unsafe { sys::cuStreamCreate(&mut raw, 1) }, sys::CUresult::CUDA_SUCCESS);
    // SAFETY: destroyed below, after the queue.
    let mut adopted = unsafe { device.clone().adopt_queue(raw as u64) }.expect("a stream of the primary context");
    let mut buffer = alloc(&device, 1 << 20);
    let sent = pattern(1 << 20, 6);
    wait_a_while(&mut *adopted, &spin, 5_000_000);
    adopted.upload(buffer.slice_mut(), &sent).expect("same length");
    let done = adopted.mark().expect("no fault");
    let mut own = queue(&device);
    own.wait(done).expect("a point of this device");
    assert!(contents(&mut *own, &buffer) == sent);
    wait_a_while(&mut *adopted, &spin, 5_000_000);
    adopted.fill(buffer.slice_mut(), 1).expect("this device's");
    drop(adopted);
    drop(buffer);
    // SAFETY: created above; kp is not to touch it any more.
    assert_eq!(unsafe { sys::cuStreamDestroy_v2(raw) }, sys::CUresult::CUDA_SUCCESS);
    let mut next = alloc(&device, 1 << 20);
    own.fill(next.slice_mut(), 2).expect("this device's");
    assert!(
        contents(&mut *own, &next).iter().all(|&x| x == 2),
        "the foreign stream's work came after its memory was reused"
    );
}

#[test]
fn the_default_stream_can_be_a_queue() {
    let Some((device, _rest)) = device() else { return };
    // 1 is CU_STREAM_LEGACY, 2 CU_STREAM_PER_THREAD, 0 the former by another name.
    for stream in [0, 1, 2] {
        // SAFETY: these streams are always there.
        let mut adopted = unsafe { device.clone().adopt_queue(stream) }.expect("a stream of the primary context");
        let mut buffer = alloc(&device, 100);
        adopted.fill(buffer.slice_mut(), stream as u8 + 1).expect("this device's");
        assert_eq!(contents(&mut *adopted, &buffer), [stream as u8 + 1; 100]);
    }
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let Some((device, _rest)) = device() else { return };
    let (mut context, mut raw) = (ptr::null_mut(), ptr::null_mut());
    let ordinal = device.info().index as i32;
    // SAFETY: the driver is loaded; the context is destroyed below.
    unsafe {
        let mut params = std::mem::zeroed();
        let made = sys::cuCtxCreate_v4(&mut context, &mut params, 0, ordinal);
        assert_eq!(made, sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamCreate(&mut raw, 1), sys::CUresult::CUDA_SUCCESS);
    }
    // SAFETY: destroyed below, and no queue is made of it.
    let refused = unsafe { device.clone().adopt_queue(raw as u64) }.err().expect("another context's");
    assert!(matches!(refused.kind(), ErrorKind::Unavailable { what: "foreign streams", .. }), "{refused}");
    // SAFETY: made above, used by nobody.
    unsafe { sys::cuCtxDestroy_v2(context) };
}

#[test]
fn foreign_memory_is_used_in_place() {
    let Some((device, _rest)) = device() else { return };
    let mut queue = queue(&device);
    let mut own = alloc(&device, 4096);
    let mut addr = 0;
    // SAFETY: `alloc` left the device's context current on this thread.
    assert_eq!(unsafe { sys::cuMemAlloc_v2(&mut addr, 4096) }, sys::CUresult::CUDA_SUCCESS);
    // SAFETY: allocated above, freed below.
    let mut theirs = unsafe { SliceMut::external(device.id(), addr, 4096) };
    let sent = pattern(4096, 8);
    queue.upload(theirs.reborrow(), &sent).expect("same length");
    queue.copy(own.slice_mut(), theirs.as_slice()).expect("same length");
    assert!(contents(&mut *queue, &own) == sent);
    // SAFETY: allocated above; the queue is idle since the download.
    assert_eq!(unsafe { sys::cuMemFree_v2(addr) }, sys::CUresult::CUDA_SUCCESS);
}

#[test]
fn a_thread_s_context_may_be_changed_by_others() {
    let Some((device, _rest)) = device() else { return };
    let spin = function(&device, "spin");
    let mut queue = queue(&device);
    let mut buffer = alloc(&device, 256);
    let ordinal = device.info().index as i32;
    let mut other = ptr::null_mut();
    // SAFETY: the driver is loaded; the context is destroyed below.
    unsafe {
        let mut params = std::mem::zeroed();
        assert_eq!(sys::cuCtxCreate_v4(&mut other, &mut params, 0, ordinal), sys::CUresult::CUDA_SUCCESS);
    }
    for context in [ptr::null_mut(), other] {
        // SAFETY: null, or alive until the end of this test. Before each kind of call, as another library might.
        let steal = || assert_eq!(unsafe { sys::cuCtxSetCurrent(context) }, sys::CUresult::CUDA_SUCCESS);
        steal();
        wait_a_while(&mut *queue, &spin, 1000);
        steal();
        queue.fill(buffer.slice_mut(), 9).expect("this device's");
        steal();
        let point = queue.mark().expect("no fault");
        steal();
        queue.sync().expect("no fault");
        steal();
        assert!(queue.reached(point).expect("no fault"));
        steal();
        let mut more = alloc(&device, 256);
        steal();
        queue.copy(more.slice_mut(), buffer.slice()).expect("same length");
        steal();
        let graph = queue.capture(|queue| queue.fill(buffer.slice_mut(), 1)).expect("a fill can be recorded");
        steal();
        // SAFETY: the buffer is alive and no other queue knows it.
        unsafe { graph.replay(&mut *queue) }.expect("this device's");
        steal();
        assert_eq!((contents(&mut *queue, &more)[0], contents(&mut *queue, &buffer)[0]), (9, 1));
        steal();
        drop((graph, more));
        let another = crate::queue(&device);
        steal();
        drop(another);
    }
    // SAFETY: made above.
    unsafe { sys::cuCtxDestroy_v2(other) };
}
